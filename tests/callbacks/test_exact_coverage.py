"""Exact pass@k is what sampling estimates, and looking changes nothing."""

import json

import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from apo_lightning.callbacks import ExactCoverage
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.data.puzzles import PuzzleSource
from apo_lightning.metrics.exact import exact_pass_at_k
from apo_lightning.model.policy import Policy
from apo_lightning.puzzles import Countdown, Locks
from apo_lightning.run import train
from apo_lightning.supervised import IGNORED, encode
from composing import composed
from running import read_metrics, training_rows, weights

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


@pytest.mark.parametrize("puzzle", [Locks(), Countdown(num_numbers=2, min_solutions=1, min_strategies=1)])
def test_log_probs_are_those_of_a_plain_forward(tmp_path, puzzle):
    policy = tiny_policy()
    prompts = prompts_of(puzzle, policy, 6)
    ExactCoverage(puzzle, tokens_per_microbatch=64).look(policy, prompts, 3, tmp_path, temperature=1.0)
    found = np.load(tmp_path / "step_000003.npz")["logprobs"]
    pairs = [(prompt.problem, answer.text) for prompt in prompts for answer in puzzle.answers(prompt.problem)]
    input_ids, labels = encode(pairs, policy.tokenizer)
    with torch.no_grad():
        logprobs = policy.model(input_ids=input_ids).logits.log_softmax(-1)[:, :-1]
    wanted = labels[:, 1:]
    picked = logprobs.gather(-1, wanted.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    expected = torch.where(wanted == IGNORED, 0.0, picked).sum(1)
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)


def test_a_look_at_the_base_has_all_its_support(tmp_path):
    policy = tiny_policy()
    prompts = prompts_of(Locks(), policy, 4)
    look = ExactCoverage(Locks(), support_size=len(policy.tokenizer))
    metrics = look.look(policy, prompts, 0, tmp_path, temperature=1.0)
    for kind in ("strategy", "digit", "end"):
        assert metrics[f"support/{kind}"] == pytest.approx(1.0, abs=1e-5)
    # Of a random model's 98 tokens the strategy's entropy is near log 98 = 4.58.
    assert 3.0 < metrics["entropy/strategy"] < np.log(len(policy.tokenizer))


def test_looking_leaves_weights_and_metrics_alone(tmp_path):
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


def test_the_share_of_right_samples_is_near_the_exact_one(tmp_path):
    """Two numbers: a random model is right on (1+1=2 has no two-digit target) rarely, so the model is made to be."""
    policy = tiny_policy()
    puzzle = Locks()
    prompts = prompts_of(puzzle, policy, 1)
    texts = [answer.text for answer in puzzle.answers(prompts[0].problem)]
    pairs = [(prompts[0].problem, text) for text in texts]
    input_ids, labels = encode(pairs, policy.tokenizer)
    optimizer = torch.optim.Adam(policy.model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        policy.model(input_ids=input_ids, labels=labels).loss.backward()
        optimizer.step()
    look = ExactCoverage(puzzle)
    metrics = look.look(policy, prompts, 0, tmp_path, temperature=1.0)
    generator = torch.Generator().manual_seed(0)
    rows = torch.tensor(prompts[0].token_ids).repeat(4000, 1)
    with torch.no_grad():
        for _ in range(4):
            probs = policy.model(input_ids=rows).logits[:, -1].softmax(-1)
            rows = torch.cat([rows, torch.multinomial(probs, 1, generator=generator)], dim=1)
    completions = policy.tokenizer.batch_decode(rows[:, -4:-1])
    ended = rows[:, -1] == policy.tokenizer.eos_token_id
    right = [puzzle.is_correct(prompts[0].problem, c) and bool(e) for c, e in zip(completions, ended, strict=True)]
    exact = metrics["pass@1"]
    assert 0.05 < exact < 0.95
    assert sum(right) / 4000 == pytest.approx(exact, abs=5 * (exact * (1 - exact) / 4000) ** 0.5)
    assert metrics["pass@8"] == pytest.approx(exact_pass_at_k(torch.tensor(exact), 8).item(), abs=1e-6)
