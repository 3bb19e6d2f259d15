"""Dynamic sampling: what a step trains on, and that neither ranks nor a stop change it."""

import itertools
import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from apo_lightning.advantages import GAE, GroupNormalized, Informative, OverlongPenalty, Shaped, SignedReward, Truncated
from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.module import RLVRModule
from apo_lightning.parts.dynamic_sampling import DynamicSampling, later_prompts, select
from apo_lightning.run import prepare
from apo_lightning.types import AdvantageInputs, Rollouts, concatenate, mixed
from composing import composed
from factories import SETTINGS, make_prompt
from recipes import recipe_of
from running import RUN, SIGNAL, on_one_and_two_ranks, train_tiny, training_rows, weights, without_clock

# Of two completions, each right half of the time, half of the groups are mixed.
DAPO = ("algo=dapo", "group_size=2", "optimizer.lr=1e-2", "data.max_completion_tokens=6")
WRITTEN = ("callbacks=rollout_writer",)


def run(folder: Path, *overrides: str) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    """Final weights, and the training rows of metrics.csv without the clock's columns."""
    final = weights(train_tiny(folder, *SIGNAL, *DAPO, *overrides))
    return final, [without_clock(row) for row in training_rows(folder)]


def lines(folder: Path, step: int) -> list[dict]:
    return [json.loads(line) for line in (folder / "rollouts" / f"step_{step:06d}.jsonl").read_text().splitlines()]


@pytest.fixture
def rounds(monkeypatch) -> list[Rollouts]:
    """What the run samples for training, round after round."""
    sample, found = RLVRModule.sample, []

    def recorded(module, prompts, group_size, *, step, stream):
        rollouts = sample(module, prompts, group_size, step=step, stream=stream)
        if stream == "train":
            found.append(rollouts)
        return rollouts

    monkeypatch.setattr(RLVRModule, "sample", recorded)
    return found


@given(st.lists(st.booleans(), max_size=24), st.integers(1, 8))
def test_the_batch_is_the_first_mixed_groups_and_then_others(is_mixed, size):
    expected = []
    for wanted in (True, False):
        for place, found in enumerate(is_mixed):
            if found is wanted and len(expected) < size:
                expected.append(place)
    assert select(is_mixed, size) == expected


def test_a_mixed_group_has_the_expectations_that_bias_the_kept_reward():
    # Over all 2^8 groups: P(mixed) = 1 − p^8 − (1 − p)^8, and E[r | mixed] = (p − p^8)/P(mixed).
    groups = torch.tensor(list(itertools.product([False, True], repeat=8)))
    for p, share, reward in ((0.9, 0.5695, 0.8244), (0.5, 0.9922, 0.5), (0.1, 0.5695, 0.1756)):
        weights = torch.where(groups, p, 1 - p).double().prod(dim=1) * mixed(groups)
        assert weights.sum().item() == pytest.approx(share, abs=5e-5)
        mean = (weights * groups.double().mean(dim=1)).sum() / weights.sum()
        assert mean.item() == pytest.approx(reward, abs=5e-5)


def test_prompts_of_later_rounds_are_a_shuffle_of_the_others_of_its_own_at_each_step():
    prompts = [make_prompt(f"p{i}") for i in range(40)]
    orders = [[prompt.id for prompt in later_prompts(prompts, prompts[:4], 7, step)] for step in (1, 2)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(prompt.id for prompt in prompts[4:])
    assert orders[0] != orders[1]
    assert [prompt.id for prompt in later_prompts(prompts[::-1], prompts[:4], 7, 1)] == orders[0]
    assert [prompt.id for prompt in later_prompts(prompts, prompts[:4], 8, 1)] != orders[0]


@pytest.mark.parametrize("oversample", [1, 2.5])
def test_every_round_draws_for_what_is_missing_and_the_first_mixed_groups_are_trained_on(tmp_path, rounds, oversample):
    _, rows = run(tmp_path, *WRITTEN, f"algo.dynamic_sampling.oversample={oversample}", "trainer.max_steps=4")
    by_step = [[part for part in rounds if part.step == step] for step in (1, 2, 3, 4)]
    assert max(map(len, by_step)) > 1
    for step, parts in enumerate(by_step, start=1):
        row, sampled = rows[step - 1], concatenate(parts)
        groups = sampled.groups
        assert len({prompt.id for prompt in sampled.prompts}) == len(groups)
        num_mixed = 0
        for part, later in itertools.zip_longest(parts, parts[1:]):
            num_mixed += int(mixed(part.is_correct).sum())
            assert (later is None) == (num_mixed >= 4)
            if later is not None:
                assert len(later.prompts) == math.ceil(oversample * (4 - num_mixed))
        batch = [group for group in groups if 0 < int(group.is_correct.sum()) < 2][:4]
        expected = [(group.prompts[0].id, text) for group in batch for text in group.texts]
        assert [(line["prompt_id"], line["completion"]) for line in lines(tmp_path, step)] == expected
        first = parts[0]
        assert float(row["train/reward"]) == pytest.approx(first.rewards.mean().item())
        assert float(row["train/pass@2"]) == pytest.approx(first.is_correct.any(dim=1).float().mean().item())
        assert float(row["train/completion_tokens"]) == pytest.approx(first.lengths.float().mean().item())
        assert float(row["train/truncated_fraction"]) == pytest.approx(first.is_truncated.float().mean().item())
        logprobs = [value for completion in first.completions for value in completion.logprobs]
        assert float(row["train/entropy"]) == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-5)
        assert float(row["reward/num_correct"]) == float(first.is_correct.sum())
        assert float(row["train/kept/reward"]) == 0.5
        assert float(row["sampling/num_rounds"]) == len(parts)
        assert float(row["sampling/num_prompts"]) == len(groups)
        tokens, trained = int(sampled.lengths.sum()), sum(int(group.lengths.sum()) for group in batch)
        assert float(row["sampling/num_tokens"]) == tokens
        assert float(row["sampling/kept_fraction"]) == pytest.approx(num_mixed / len(groups))
        assert float(row["sampling/discarded_fraction"]) == pytest.approx(1 - trained / tokens)
        timed = training_rows(tmp_path)[step - 1]
        rate = tokens / float(timed["time/step"])
        assert float(timed["perf/tokens_per_second"]) == pytest.approx(rate, rel=1e-3)


def test_where_all_groups_are_mixed_it_is_the_run_without_it_bit_for_bit(tmp_path):
    sizes = ("group_size=16", *WRITTEN)
    plain, plain_rows = run(tmp_path / "plain", *sizes, "algo.dynamic_sampling=null")
    filled, rows = run(tmp_path / "filled", *sizes)
    assert {row["sampling/kept_fraction"] for row in rows} == {"1.0"}
    assert all(torch.equal(plain[name], filled[name]) for name in plain)
    for one, two in zip(plain_rows, rows, strict=True):
        assert {name: two[name] for name in one} == one
    assert lines(tmp_path / "plain", 2) == lines(tmp_path / "filled", 2)


def test_one_round_is_the_estimator_that_drops_the_other_groups(tmp_path):
    sizes = ("prompts_per_step=16", "prompts_per_minibatch=16", "trainer.max_steps=1")
    _, [plain] = run(tmp_path / "plain", *sizes, "algo.dynamic_sampling=null")
    _, [one] = run(tmp_path / "one", *sizes, "algo.dynamic_sampling.max_rounds=1")
    assert 0 < float(one["sampling/kept_fraction"]) < 1
    for name in ("train/loss", "train/grad_norm", "train/reward", "train/entropy", "train/zero_advantage_fraction"):
        assert float(one[name]) == pytest.approx(float(plain[name]), rel=1e-5, abs=1e-6), name


def test_where_no_group_is_mixed_the_steps_own_prompts_fill_the_batch_and_nothing_is_trained(tmp_path, rounds):
    never = ("reward.function._target_=rewarding.never", "trainer.max_steps=1", "algo.dynamic_sampling.max_rounds=3")
    _, [row] = run(tmp_path, *never, *WRITTEN)
    assert [len(part.prompts) for part in rounds] == [4, 4, 4]
    assert float(row["sampling/num_rounds"]) == 3
    assert float(row["sampling/discarded_fraction"]) == 1
    assert float(row["train/num_empty_minibatches"]) == 2
    assert math.isnan(float(row["train/kept/reward"]))
    found = lines(tmp_path, 1)
    assert [line["prompt_id"] for line in found[::2]] == [prompt.id for prompt in rounds[0].prompts]
    assert not any(line["kept"] for line in found)


STOPPED = ("trainer.max_steps=3", "checkpoint.save_every=1", *WRITTEN)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    final, rows = run(folder, *STOPPED)
    assert float(rows[1]["sampling/num_rounds"]) >= 2
    assert all(float(row["train/grad_norm"]) > 0 for row in rows)
    return final, rows, folder


def test_stopped_in_the_second_round_it_goes_on_as_if_nothing_had_happened(uninterrupted, tmp_path, monkeypatch):
    expected, expected_rows, expected_folder = uninterrupted
    sample, calls = RLVRModule.sample, []

    def stopped_in_round_two(module, prompts, group_size, *, step, stream):
        calls.append(step)
        if calls.count(2) == 2 and stream == "train":
            os.kill(os.getpid(), signal.SIGTERM)
        return sample(module, prompts, group_size, step=step, stream=stream)

    with monkeypatch.context() as patch:
        patch.setattr(RLVRModule, "sample", stopped_in_round_two)
        with pytest.raises(Preempted, match=r"SIGTERM.*step_000001"):
            run(tmp_path, *STOPPED, "checkpoint.save_every=null")
    final, rows = run(tmp_path, *STOPPED, "resume=auto")
    assert all(torch.equal(final[name], expected[name]) for name in expected)
    assert rows == expected_rows
    for step in (2, 3):
        assert lines(tmp_path, step) == lines(expected_folder, step)


@pytest.mark.slow
def test_two_ranks_select_the_groups_that_one_process_does(tmp_path):
    sizes = (*DAPO, *WRITTEN, "trainer.max_steps=3", "optimizer.lr=1e-3")
    alone, together = on_one_and_two_ranks(tmp_path, ["ddp_cpu2"], *sizes)
    assert {float(row["sampling/num_rounds"]) for row in alone} != {1.0}
    for step, (one, two) in enumerate(zip(alone, together, strict=True), start=1):
        for name in (name for name in one if name.startswith(("train/", "sampling/", "reward/"))):
            expected = pytest.approx(float(one[name]), rel=1e-6, abs=1e-6, nan_ok=True)
            assert float(two[name]) == expected, name
        completions = [
            [(line["prompt_id"], line["completion"], line["kept"]) for line in lines(tmp_path / trainer, step)]
            for trainer in ("cpu", "ddp_cpu2")
        ]
        assert completions[0] == completions[1]


def test_groups_are_dropped_by_their_verdicts_and_not_by_their_rewards():
    # All are right; the penalty gives the longer one a negative advantage.
    inputs = AdvantageInputs(
        rewards=torch.ones(2, 2),
        is_correct=torch.tensor([[True, True], [True, False]]),
        lengths=torch.tensor([[1, 10], [1, 1]]),
        truncated=torch.tensor([[False, True], [False, True]]),
        max_completion_tokens=10,
    )
    shaped = Shaped(GroupNormalized(), OverlongPenalty())
    given = Informative(shaped)(inputs)
    assert given.values[0].tolist() == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert given.keep.tolist() == [[False, False], [True, True]]
    both = Informative(Truncated(shaped))
    assert both(inputs).keep.tolist() == [[False, False], [True, False]]
    assert (both.punishes_correct, both.spares_errors) == (True, False)
    assert Informative(SignedReward(1.0, 0.0)).spares_errors
    with pytest.raises(ConfigError, match="group_size is 1"):
        both.check(1)


def test_what_cannot_work_is_refused_and_named():
    sampling, good = DynamicSampling(max_rounds=3, oversample=1.5), Informative(GroupNormalized())
    # Two prompts a step: at most 2 + 2·3.
    sampling.check(recipe_of(settings=SETTINGS, num_prompts=8, advantage=good))
    for changes, words in (
        ({"settings": replace(SETTINGS, group_size=1)}, "group_size is 1"),
        ({"advantage": Informative(GAE())}, "algo.critic"),
        ({"advantage": GroupNormalized()}, "algo.advantage is GroupNormalized: .*Informative"),
        ({"num_prompts": 7}, "may draw 8 prompts in a step, and there are 7"),
    ):
        values = {"settings": SETTINGS, "num_prompts": 8, "advantage": good} | changes
        with pytest.raises(ConfigError, match=words):
            sampling.check(recipe_of(**values))
    for values, words in (({"max_rounds": 0}, "max_rounds is 0"), ({"oversample": 0.5}, "oversample is 0.5")):
        with pytest.raises(ConfigError, match=words):
            DynamicSampling(**values)


def test_a_run_is_refused_before_any_weights_are_loaded_and_warned():
    with pytest.raises(ConfigError, match="may draw 400 prompts in a step, and there are 39"):
        prepare(composed(*RUN, *DAPO, "prompts_per_step=40"))
    nsr = ("algo=nsr", "~algo.advantage", "+algo.dynamic_sampling._target_=" + SAMPLING)
    nsr += ("+algo.advantage._target_=apo_lightning.advantages.Informative",)
    nsr += ("+algo.advantage.estimator._target_=apo_lightning.advantages.SignedReward",)
    [notice] = prepare(composed(*RUN, *nsr)).notices
    assert "SignedReward" in notice
    assert prepare(composed(*RUN, *DAPO)).notices == []


SAMPLING = f"{DynamicSampling.__module__}.DynamicSampling"
