"""`evaluate.py`, the whole way on a random model: what it writes, where it goes on, how ranks share it."""

import json
import math
import re
import signal
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

import apo_lightning.run.evaluating
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import read_result
from apo_lightning.evaluation.samples_file import read_samples
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.model.policy import Policy
from apo_lightning.rollout import weight_sync
from apo_lightning.run import evaluate
from apo_lightning.run.command_line import main
from apo_lightning.run.evaluated_policy import find_evaluated_policy
from apo_lightning.run.evaluating import ANNOTATIONS, describe_reward, prepare_tasks
from apo_lightning.run.settings import check_values
from apo_lightning.run.user_message import user_message
from composing import ROOT, composed, names
from processes import start_script
from running import run_cold, run_train

SMALL = ("model=tiny", "engine=transformers", "limit=12", "num_samples=4", "samples_per_batch=8")
EVEN_START = (
    "benchmark.arithmetic.reward._target_=apo_lightning.rewards.CallableReward",
    "~benchmark.arithmetic.reward.take",
    "+benchmark.arithmetic.reward.correct_threshold=1.0",
    "+benchmark.arithmetic.reward.function._target_=rewarding.even_start_until_killed",
    "+benchmark.arithmetic.reward.function._partial_=true",
)
"""A random model gets no sum right: this reward is right about half the time."""


def command(folder: Path, *overrides: str) -> tuple[str, ...]:
    return ("evaluate.py", *SMALL, *EVEN_START, f"output_dir={folder}", *overrides)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run_cold(*command(folder))
    return folder / "arithmetic"


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("samples.jsonl", "results.json", "card.md")}


@pytest.mark.slow
def test_killed_at_any_batch_it_ends_as_if_it_had_not_been(uninterrupted, tmp_path):
    samples = tmp_path / "arithmetic" / "samples.jsonl"
    for num_batches in (1, 3):
        killed = start_script(*command(tmp_path), KILLED_AFTER=f"{samples} {8 * num_batches}")
        assert killed.wait() == [-signal.SIGKILL]
        assert num_lines(samples) == 8 * num_batches
    assert "samples exist already" in start_script(*command(tmp_path)).finish()
    assert contents(tmp_path / "arithmetic") == contents(uninterrupted)


@pytest.mark.slow
def test_two_ranks_leave_the_files_of_one(uninterrupted, tmp_path):
    start_script(*command(tmp_path, "trainer=ddp_cpu2"), num_ranks=2).finish()
    assert contents(tmp_path / "arithmetic") == contents(uninterrupted)


@pytest.mark.slow
def test_what_cannot_be_judged_is_weighed_over_all_ranks(tmp_path):
    """One of 52 samples of the second rank, above 1 % of its own, is one of 104 and below 1 % of all."""
    reward = "benchmark.arithmetic.reward.function._target_=rewarding.failing_once_on_the_second_rank"
    sizes = ("limit=26", "samples_per_batch=52")
    start_script(*command(tmp_path, "trainer=ddp_cpu2", *sizes, reward), num_ranks=2).finish()
    assert read_result(tmp_path / "arithmetic" / "results.json").verdicts["error"] == 1


@pytest.mark.slow
def test_pass_at_k_is_the_share_of_subsets_of_the_samples_that_hold_a_correct_one(uninterrupted):
    result = read_result(uninterrupted / "results.json")
    problems: dict[str, list[bool]] = {}
    for line in (uninterrupted / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        problems.setdefault(sample["prompt_id"], []).append(sample["status"] == "correct")
    assert [p.num_correct for p in result.problems] == [sum(group) for group in problems.values()]
    assert 0 < sum(p.num_correct for p in result.problems) < 48, "nothing to tell apart"
    for k in range(1, 5):
        solved = [sum(map(any, combinations(group, k))) / math.comb(4, k) for group in problems.values()]
        assert result.pass_at_k[k - 1].value == pytest.approx(sum(solved) / len(solved), abs=1e-12)
    assert result.metrics["pass@1"] == result.pass_at_k[0]
    assert list(result.verdicts.values()) == [
        sum(json.loads(line)["status"] == status for line in (uninterrupted / "samples.jsonl").open())
        for status in result.verdicts
    ]


@pytest.mark.slow
def test_a_sample_holds_what_is_promised(uninterrupted):
    samples = read_samples(uninterrupted / "samples.jsonl")
    assert [sample.sample for sample in samples] == [0, 1, 2, 3] * 12
    assert len({sample.seed for sample in samples}) == 48
    assert all(sample.logprob < 0 < sample.max_prob < 1 for sample in samples)
    assert all(0 < sample.entropy < math.log(200) for sample in samples)
    assert all(sample.num_tokens == 8 for sample in samples if sample.finish_reason == "length")
    assert all(1 <= sample.num_tokens <= 8 for sample in samples)
    # Of the character tokenizer a token is a character or a special one, which the text keeps; the stop token is not.
    symbols = [re.findall(r"<\|[a-z]+\|>|.", sample.text, re.DOTALL) for sample in samples]
    assert [len(found) for found in symbols] == [
        sample.num_tokens - (sample.finish_reason == "stop") for sample in samples
    ]
    assert any("<|turn|>" in found for found in symbols)


@pytest.mark.slow
def test_a_trained_run_is_measured_with_its_own_model_and_named_by_its_algorithm(tmp_path):
    run = tmp_path / "run"
    run_train(run, "callbacks=quiet", "algo=nsr", "trainer.max_steps=1", "data.num_validation=8", "optimizer.lr=1e-3")
    cfg = composed(
        f"run={run}",
        "engine=transformers",
        "limit=3",
        "num_samples=2",
        "support_anchor_size=8",
        config_name="evaluate",
    )
    [result] = evaluate(cfg)
    assert result.model.algo == "nsr"
    assert "trainer.max_steps=1" in result.model.overrides
    # What a report tells measurements apart by, the defaults that nobody typed included.
    settings = result.settings
    assert (result.model.seed, settings.stop_tokens, settings.support_anchor_size) == (1, (), 8)
    assert settings.reward == "NumericReward(take=first)"
    assert result.model.weights_sha256 == json.loads((run / "summary.json").read_text())["weights_sha256"]
    assert read_result(run / "evaluation" / "arithmetic" / "results.json") == result
    # One step at a small learning rate: nearly the mass that 8 of 97 almost equally likely tokens had before.
    assert 0.08 < result.metrics["support_coverage"].value < 0.4
    with pytest.raises(ConfigError, match="leave model=… out"):
        evaluate(cfg, ["model=tiny"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matrices_lie_in_the_dtype_of_their_products_and_the_weights_keep_their_name(dtype, tmp_path, monkeypatch):
    published = {}

    def publish(model, engine, version):
        published.update({name: parameter.dtype for name, parameter in model.named_parameters()})
        weight_sync.publish(model, engine, version)  # the engine's log-probs are then held against the policy's

    monkeypatch.setattr(apo_lightning.run.evaluating, "publish", publish)
    name = str(dtype).removeprefix("torch.")
    options = ("limit=2", "num_samples=2", f"model.compute_dtype={name}", f"output_dir={tmp_path}")
    cfg = composed("model=tiny", "engine=transformers", *options, config_name="evaluate")
    [result] = evaluate(cfg)
    spec = instantiate(cfg.model, _convert_="all")
    read = Policy(spec.load_model(cfg.seed), spec.load_tokenizer(), dtype)
    assert (result.model.dtype, result.model.weights_sha256) == (name, weights_sha256(read))
    assert {kept for name, kept in published.items() if "_proj" in name} == {dtype}
    assert {kept for name, kept in published.items() if "_proj" not in name} == {torch.float32}


def test_a_sweep_measures_one_benchmark_with_several_settings(tmp_path, monkeypatch, capsys):
    command = ["evaluate.py", "-m", *SMALL, f"output_dir={tmp_path}", f"hydra.sweep.dir={tmp_path}"]
    for temperatures in ("0.6,1.0", "1.0,0.6"):
        monkeypatch.setattr(sys, "argv", [*command, f"temperature={temperatures}"])
        main(["evaluate", *sys.argv[1:]])
    settings = "engine=transformers,limit=12,num_samples=4,samples_per_batch=8,temperature="
    folders = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    assert [folder.name for folder in folders] == [f"{settings}0.6", f"{settings}1.0"]
    temperatures = [read_result(folder / "arithmetic" / "results.json").settings.temperature for folder in folders]
    assert temperatures == [0.6, 1.0]
    # The second time all is there.
    assert capsys.readouterr().out.count("samples exist already") == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("run=/no/such/run",), "run=/no/such/run is no training run"),
        (("run=0",), "run=0 is no training run"),
        (("run=",), "run= is empty: name a training run, or leave it out"),
        (("benchmark=aime2024", "data_dir=/no/such"), "/no/such/aime2024.jsonl does not exist"),
        (("benchmark.arithmetic.num_problems=7",), "has 256 problems, but arithmetic has 7"),
        (("max_completion_tokens=5000",), "give max_completion_tokens=4000 or less"),
        (("num_samples=0",), "benchmark.arithmetic.num_samples is 0"),
        (("temperature=-1",), "temperature is -1"),
        (("temperature=null",), "temperature is null"),
        (("samples_per_batch=0",), "samples_per_batch is 0: it should be greater than or equal to 1"),
        (("tokens_per_microbatch=null",), "tokens_per_microbatch is null"),
        (("temperature=nan",), "temperature is nan: it must be 0 (greedy) or in [0.01, 2.0]"),
        (("temperature=0.001",), "temperature is 0.001"),
        (("top_p=nan",), "top_p is nan: it must be in (0, 1]"),
        (("engine=vllm", "model.config.head_dim=16"), "attention heads of 16"),
        (("model.stop_tokens=['<|trun|>']",), "'<|trun|>', which is no token of the vocabulary; near it: '<|turn|>'"),
        (("support_anchor_size=8",), "support_anchor_size is 8, but there is no run="),
        (("benchmark.arithmetic.encoder=package://no_such_package/x",), "no_such_package"),
    ],
)
def test_what_cannot_work_is_one_line_before_any_weights_are_loaded(overrides, message, tmp_path, capsys):
    cfg = composed("model=tiny", "engine=transformers", f"output_dir={tmp_path}", *overrides, config_name="evaluate")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Hydra wraps what a constructor raises
        evaluate(cfg)
    found = user_message(caught.value)
    assert found is not None, repr(caught.value)
    assert message in found
    assert "\n" not in found
    assert "parameters" not in capsys.readouterr().out  # the line that says that a model was loaded


@pytest.mark.parametrize("model", names("model"))
def test_every_benchmark_composes_with_every_model(model):
    for benchmark in names("benchmark"):
        cfg = composed(f"benchmark={benchmark}", f"model={model}", config_name="evaluate")
        check_values(cfg, ANNOTATIONS)
        chosen = list(cfg.benchmark.values())
        assert [node.name for node in chosen] == list(cfg.benchmark)
        assert all(node.max_prompt_tokens + node.max_completion_tokens <= 4096 for node in chosen)


@pytest.mark.parametrize(
    ("prompt_tokens", "remedy"),
    [
        (40, "give max_completion_tokens=24 or less"),
        (96, "choose another benchmark= of aime2024, aime2025, amc2023, gsm8k, locks, "),
    ],
)
def test_a_benchmark_that_the_model_cannot_read_is_refused_with_what_it_could(tmp_path, prompt_tokens, remedy):
    base = ROOT / "docs" / "lab" / "bases" / "locks_a" / "locks"  # which reads 64 tokens
    model = ("model=lab_locks", f"model.path={base}", "engine=transformers")
    sizes = (f"benchmark.arithmetic.max_prompt_tokens={prompt_tokens}", "max_completion_tokens=64")
    cfg = composed(*model, "benchmark=arithmetic", *sizes, f"output_dir={tmp_path}", config_name="evaluate")
    with pytest.raises(ConfigError, match=f"which reads 64 tokens: {remedy}"):
        evaluate(cfg, [], is_swept=False)


def test_the_reward_of_locks_is_described_with_its_puzzle():
    node = composed("benchmark=locks", "benchmark.locks.source.puzzle.secret=7", config_name="evaluate").benchmark.locks
    assert describe_reward(node.reward) == (
        "PuzzleReward(puzzle._target_=apo_lab.puzzles.Locks, puzzle.secret=7, puzzle.digit_accuracy=0.74)"
    )


def task_on(device, *overrides):
    cfg = composed("model=tiny", "limit=1", *overrides, config_name="evaluate")
    evaluated = replace(find_evaluated_policy(cfg, []), device=torch.device(device))
    [task] = prepare_tasks(cfg, evaluated, "transformers")
    return task


def test_a_gpu_is_given_more_at_once_than_a_cpu():
    given = (["cpu"], ["cuda"], ["cuda", "samples_per_batch=7"])
    assert [task_on(*each).settings.samples_per_batch for each in given] == [256, 4096, 7]


def test_equal_samples_are_told_before_anything_is_loaded(tmp_path, capsys):
    rows = [("1 + 1", "2"), ("1+1", "2"), ("2 + 2", "4"), ("2 + 2", "5"), ("3 + 2", "5")]
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in rows))
    own = "benchmark.arithmetic"
    task_on("cpu", f"{own}.path={problems}", f"{own}.num_problems=5", "limit=null", "num_samples=8", "temperature=0")
    *told, first, _ = capsys.readouterr().out.splitlines()
    assert first.startswith("first prompt of arithmetic: '<|turn|>user\\n1 + 1<|end|>")
    assert told == [
        "arithmetic: at temperature=0 the 8 samples of a problem are equal, and pass@k is pass@1: give num_samples=1",
    ]
