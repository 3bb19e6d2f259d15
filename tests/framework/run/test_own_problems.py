"""`apo evaluate run=…` measures what the run held out, or a file, with the run's reward and prompt."""

import json
import sys

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from apo_lightning.checkpoints.origin import write_run_record
from apo_lightning.errors import ConfigError
from apo_lightning.run import evaluate
from apo_lightning.run.own_problems import with_own_problems
from apo_lightning.run.sources import identity_of_held_out
from composing import composed

REWARD = {"_target_": "apo_lightning.rewards.CallableReward", "function": {"_target_": "mine.short", "_partial_": True}}
SOURCE = {"max_prompt_tokens": 64, "max_completion_tokens": 3, "num_validation": 4}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a reward, files of problems and what an evaluation reads of a run, `run`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text("def short(completions, **_):\n    return [1.0 for _ in completions]\n")
    rows = [{"problem": f"{n} and {n}?", "answer": str(2 * n)} for n in range(20)]
    for name, part in (("mine", rows), ("test", rows[:3])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    write_run(tmp_path / "run")
    return tmp_path


def write_run(folder, reward=REWARD, **source):
    data = {"_target_": "apo_lightning.data.DatasetSource", "name": "mine", "path": "mine.jsonl", **SOURCE, **source}
    cfg = {
        "model": composed("model=tiny").model,
        "data": data,
        "reward": reward,
        "policy": {"lora": None},
        "seed": 1,
        "temperature": 1.0,
    }
    (folder / ".hydra").mkdir(parents=True, exist_ok=True)
    chosen = {"hydra": {"runtime": {"choices": {"algo": "apo"}}}}
    for name, node in (("config", cfg), ("hydra", chosen), ("overrides", [])):
        OmegaConf.save(OmegaConf.create(node), folder / ".hydra" / f"{name}.yaml")
    write_run_record(folder, identity_of_held_out(instantiate(data).load().validation))


def asked(*overrides):
    cfg = composed("run=run", "engine=transformers", *overrides, config_name="evaluate")
    return with_own_problems(cfg, overrides)


@pytest.mark.parametrize(
    ("overrides", "measured"),
    [
        ([], {"mine": (None, 4)}),
        (["data.path=test.jsonl"], {"test": ("test.jsonl", 3)}),
        (["benchmark=[often]"], {"often": ("test.jsonl", 3)}),
    ],
)
def test_without_a_benchmark_the_run_s_own_problems_are_measured_with_its_reward(folder, overrides, measured):
    (folder / "configs" / "benchmark").mkdir(parents=True)
    (folder / "configs" / "benchmark" / "often.yaml").write_text("# @package benchmark.often\npath: test.jsonl\n")
    cfg = asked(*overrides)
    assert {name: node.path for name, node in cfg.benchmark.items()} == {n: path for n, (path, _) in measured.items()}
    for node in cfg.benchmark.values():
        assert (node.reward, node.max_completion_tokens, node.num_samples) == (REWARD, 3, 16)
    cfg.run, cfg.model, cfg.num_samples, cfg.token_statistics = None, composed("model=tiny").model, 2, False
    cfg.output_dir = "out"
    results = evaluate(cfg)
    assert {found.benchmark: found.data.num_problems for found in results} == {n: k for n, (_, k) in measured.items()}
    assert all(result.metrics["pass@1"].value == 1.0 for result in results)


@pytest.mark.parametrize(
    ("overrides", "source", "said"),
    [
        ([], {"num_validation": 0}, "run=run has held no problems out: give data.path=test.jsonl"),
        (["data.path=test.jsonl", "benchmark=[gsm8k]"], {}, "data.path=test.jsonl is measured in place of benchmark="),
        (["data.path=test.jsonl", "run=null"], {}, "benchmark test takes its reward and prompt from a training run"),
        (["+benchmark.path=test.jsonl"], {}, "begin its file with `# @package benchmark.NAME`"),
    ],
)
def test_what_cannot_be_measured_is_one_line(folder, overrides, source, said):
    write_run(folder / "run", **source)
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
        asked(*overrides)


def test_a_problem_that_was_withdrawn_is_refused_since_the_others_are_no_longer_those_held_out(folder):
    rows = (folder / "mine.jsonl").read_text().splitlines(keepends=True)
    held_out = instantiate(asked().benchmark.mine.source).load().validation["mine"]
    left = [row for row in rows if json.loads(row)["problem"] != held_out[0].problem]
    (folder / "mine.jsonl").write_text("".join(left))
    with pytest.raises(ConfigError, match="run=run: the problems of validation on mine changed after its run began"):
        asked()


def test_other_code_of_the_judge_is_another_evaluation(folder):
    cfg = asked()
    cfg.run, cfg.model, cfg.num_samples, cfg.token_statistics = None, composed("model=tiny").model, 2, False
    cfg.output_dir = "out"
    evaluate(cfg)
    evaluate(cfg)
    (folder / "mine.py").write_text("def short(completions, **_):\n    return [0.0 for _ in completions]\n")
    with pytest.raises(ConfigError, match=r"holds another evaluation: the code of mine\.py is"):
        evaluate(cfg)


@pytest.mark.parametrize(
    "function",
    [
        {"_target_": "os.system", "_partial_": True},
        {"_target_": "run.theirs.short", "_partial_": True},
        {"_target_": "mine.short", "_partial_": True, "completions": []},
        {"_target_": "mine.short"},
    ],
)
def test_a_run_s_folder_names_no_function_but_a_reward_of_the_working_directory(folder, function):
    (folder / "run" / "theirs.py").write_text("def short(completions): ...\n")
    write_run(folder / "run", {**REWARD, "function": function})
    with pytest.raises(ConfigError, match="which no option of reward= here names"):
        asked()
