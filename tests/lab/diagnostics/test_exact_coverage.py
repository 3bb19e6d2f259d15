"""Exact pass@k is what sampling estimates, and looking changes nothing."""

import json

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from apo_lab.diagnostics import ExactCoverage
from apo_lab.pretraining.supervised import IGNORED, encode
from apo_lab.puzzles import Countdown, Divisors, Locks, PuzzleReward
from apo_lab.puzzles.source import PuzzleSource
from apo_lightning.common.phases import PhaseClock
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.errors import ConfigError
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import START_OF_TURN
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.engine import EngineContext
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.weight_sync import publish
from apo_lightning.run import train
from composing import composed
from running import SIGNAL, read_metrics, training_rows, weights

LAB = (
    "experiment=lab/locks",
    "model=tiny",
    "model.prompt_template='{problem}'",
    "prompts_per_step=4",
    "prompts_per_minibatch=2",
    "data.num_train=64",
    "data.num_validation=8",
    "trainer.max_steps=2",
    "trainer.val_check_interval=1",
)


def tiny_policy():
    spec = instantiate(composed("model=tiny").model, _convert_="all")
    return Policy(spec.load_model(0), spec.load_tokenizer(), torch.float32)


def prompts_of(puzzle, policy, count):
    source = PuzzleSource(puzzle=puzzle, num_train=1, num_validation=count)
    data = PromptDataModule(source, policy.tokenizer, prompts_per_step=1, seed=0, prompt_template="{problem}")
    data.prepare()
    return data.validation_prompts[puzzle.name]


@pytest.mark.parametrize("puzzle", [Locks(), Countdown(num_numbers=2, min_solutions=1, min_strategies=1), Divisors()])
def test_log_probs_are_those_of_a_plain_forward(tmp_path, puzzle):
    policy = tiny_policy()
    prompts = prompts_of(puzzle, policy, 6)
    ExactCoverage(puzzle, tokens_per_microbatch=64).score(policy, prompts, 3, tmp_path, temperature=1.0)
    found = np.load(tmp_path / "step_000003.npz")["logprobs"]
    pairs = [(prompt.problem, answer.text) for prompt in prompts for answer in puzzle.answers(prompt.problem)]
    input_ids, labels = encode(pairs, policy.tokenizer)
    with torch.no_grad():
        logprobs = policy.model(input_ids=input_ids).logits.log_softmax(-1)[:, :-1]
    wanted = labels[:, 1:]
    picked = logprobs.gather(-1, wanted.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    expected = torch.where(wanted == IGNORED, 0.0, picked).sum(1)
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)


def test_looking_leaves_weights_and_metrics_alone_and_says_what_it_saw_once(tmp_path, capsys):
    watched, alone = (
        weights(train(composed(*LAB, *more), tmp_path / name))
        for name, more in (("watched", ()), ("alone", ("callbacks=none",)))
    )
    rows, others = (training_rows(tmp_path / name) for name in ("watched", "alone"))
    assert all(torch.equal(watched[name], alone[name]) for name in alone)
    assert [row["train/loss"] for row in rows] == [row["train/loss"] for row in others]
    looks = [json.loads(line) for line in (tmp_path / "watched" / "exact" / "metrics.jsonl").read_text().splitlines()]
    assert [look["step"] for look in looks] == [0, 1, 2]
    logged = [row["val/locks/exact/pass@64"] for row in read_metrics(tmp_path / "watched")]
    assert [float(value) for value in logged if value] == pytest.approx([look["pass@64"] for look in looks])
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("exact")]
    ends = ", ".join(f"{name} {looks[0][name]:.3f} -> {looks[2][name]:.3f}" for name in ("pass@1", "pass@64"))
    num_problems = len(json.loads((tmp_path / "watched" / "exact" / "answers.json").read_text())["problems"])
    assert said == [f"exact, {num_problems} problems, step 0 -> 2: {ends}"]


def test_a_run_ends_at_the_first_look_at_a_pass_at_1_that_is_high_enough(tmp_path):
    def looks(name, stop_at):
        cfg = composed(*LAB, *SIGNAL, "optimizer.lr=0.01", "seed=6", f"callbacks.exact.stop_at={stop_at!r}")
        train(cfg, tmp_path / name)
        return [json.loads(line) for line in (tmp_path / name / "exact" / "metrics.jsonl").read_text().splitlines()]

    whole = looks("whole", 1.0)
    assert len(whole) == 3
    place = max(range(3), key=lambda step: whole[step]["pass@1"])
    assert place == 1  # above both others: neither the first look nor the last
    assert looks("stopped", whole[1]["pass@1"]) == whole[:2]
    assert len(training_rows(tmp_path / "stopped")) == 1


def fitted(puzzle, prompts, policy):
    """The policy, short of converged on answers that end, of which a part has a special token inside or for its end."""
    pairs = []
    for prompt in prompts:
        for answer in puzzle.answers(prompt.problem):
            inside = (START_OF_TURN + answer.text, answer.text[:2] + START_OF_TURN + answer.text[2:])
            behind = (answer.text + START_OF_TURN * number for number in (1, puzzle.max_completion_tokens))
            pairs += [(prompt.problem, text) for text in (answer.text, answer.text, *inside, *behind)]
    input_ids, labels = encode(pairs, policy.tokenizer)
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        policy.model(input_ids=input_ids, labels=labels).loss.backward()
        optimizer.step()
    return policy


def sampled(puzzle, prompts, policy, folder, group_size):
    """What engine and reward make of `group_size` completions a prompt."""
    policy.model.config.save_pretrained(folder)
    limit = puzzle.max_completion_tokens
    engine = TransformersEngine(sequences_per_batch=4096)
    context = EngineContext(
        model_dir=folder,
        dtype=torch.float32,
        max_model_len=puzzle.max_prompt_tokens + limit,
        device=torch.device("cpu"),
        seed=0,
    )
    engine.setup(context)
    publish(policy.model, engine, 1)
    collector = Collector(
        engine=engine,
        reward=PuzzleReward(puzzle),
        tokenizer=policy.tokenizer,
        run_seed=0,
        max_completion_tokens=limit,
        stop_token_ids=policy.stop_token_ids,
        clock=PhaseClock(),
    )
    return collector.collect(prompts, group_size=group_size, temperature=1.0, step=0, stream="train")


@pytest.mark.parametrize("puzzle", [Locks(), Countdown(num_numbers=2, min_solutions=1, min_strategies=1), Divisors()])
def test_engine_and_reward_are_right_as_often_as_the_exact_measure_says(tmp_path, puzzle):
    """20,000 completions: the share that is rewarded lies within four standard errors of the mean of p(x)."""
    policy = tiny_policy()
    prompts = prompts_of(puzzle, policy, 4)
    fitted(puzzle, prompts, policy)
    exact = ExactCoverage(puzzle).score(policy, prompts, 0, tmp_path / "exact", temperature=1.0)["pass@1"]
    rollouts = sampled(puzzle, prompts, policy, tmp_path / "model", group_size=5000)
    with_special = [START_OF_TURN in text for text in rollouts.texts]
    cut_off = [completion.finish_reason == "length" for completion in rollouts.completions]
    assert sum(with_special) > 2000
    assert sum(cut_off) > 2000
    # p(x)(1 − p(x)) is concave, so that the variance of a share over several problems is at most that at the mean.
    error = (exact * (1 - exact) / len(rollouts.texts)) ** 0.5
    assert 0.05 < exact < 0.95
    assert rollouts.is_correct.float().mean().item() == pytest.approx(exact, abs=4 * error)


def test_the_list_has_one_end_and_more_are_refused(tmp_path):
    policy = tiny_policy()
    policy.stop_tokens = (START_OF_TURN,)
    prompts = prompts_of(Locks(), policy, 1)
    with pytest.raises(ConfigError, match=r"completions also end with \['<\|turn\|>'\].* model.stop_tokens=\[\]"):
        ExactCoverage(Locks()).score(policy, prompts, 0, tmp_path, temperature=1.0)
