"""Reward functions in real runs: what they log, what a resumed run repeats, and what is refused before it."""

import json

import pytest

from apo_lightning.errors import ConfigError
from apo_lightning.run.training import prepare
from composing import composed
from running import RUN, SIGNAL, on_one_and_two_ranks, run, train_tiny, without_clock


def function(name, target):
    return [f"+reward.functions.{name}._target_=rewarding.{target}", f"+reward.functions.{name}._partial_=true"]


SEVERAL = ("reward=weighted", *function("start", "logged_even_start"), *function("done", "progress"))


def test_functions_are_logged_apart_and_their_sum_is_the_reward(tmp_path):
    _, rows = run(tmp_path, *SEVERAL, "+reward.weights.done=0.5", "callbacks=rollout_writer")
    assert [float(row["reward/done/mean"]) for row in rows] == [0.0, 0.5]  # 2 of 4 optimizer steps
    for row in rows:
        lines = [
            json.loads(line)
            for line in (tmp_path / "rollouts" / f"step_{int(row['step']):06d}.jsonl").read_text().splitlines()
        ]
        starts = [line["rewards"]["start"] for line in lines]
        given = [reward for reward in starts if reward is not None]
        assert len(given) < len(starts) == 16  # "the case is met"
        assert float(row["reward/start/num_none"]) == len(starts) - len(given)
        assert float(row["reward/start/mean"]) == pytest.approx(sum(given) / len(given))
        assert [line["reward"] for line in lines] == pytest.approx(
            [(line["rewards"]["start"] or 0.0) + 0.5 * line["rewards"]["done"] for line in lines]
        )
        assert float(row["train/reward"]) == pytest.approx(sum(line["reward"] for line in lines) / 16)
        tokens = [line["num_tokens"] for line in lines]
        assert float(row["reward/metric/tokens"]) == pytest.approx(sum(tokens) / 16)
        assert {line["extra"]["epoch"] for line in lines} == {4 * (int(row["step"]) - 1) / 396}


def test_one_function_of_weight_one_trains_the_same_weights(tmp_path):
    single = ("reward=callable", "reward.function._target_=rewarding.logged_even_start")
    weights, rows = run(tmp_path / "single", *single)
    others, several = run(tmp_path / "several", "reward=weighted", *function("only", "logged_even_start"))
    assert all((weights[name] == others[name]).all() for name in weights)
    for row, other in zip(rows, several, strict=True):
        own = {key: value for key, value in other.items() if not key.startswith("reward/only/")}
        assert without_clock(own) == without_clock(row)


@pytest.mark.slow
def test_two_ranks_log_what_one_process_logs(tmp_path):
    options = ("reward.function._target_=rewarding.logged_even_start", "algo=grpo")
    one, two = on_one_and_two_ranks(tmp_path, ["ddp_cpu2"], *options)
    for row, other in zip(one, two, strict=True):
        for key in ("train/reward", "reward/metric/tokens", "reward/num_unparsed", "train/grad_norm"):
            assert float(row[key]) == pytest.approx(float(other[key]), rel=1e-5), key


def test_a_missing_column_is_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match="needs calls, expected, function, which problem"):
        train_tiny(tmp_path, "reward=callable", "reward.function._target_=rewarding.of_calls")
    assert not (tmp_path / "metrics.csv").exists()


@pytest.mark.parametrize(
    "options",
    [(SIGNAL[0], "reward.function._target_=rewarding.broken"), ("reward=weighted", *function("x", "broken"))],
)
def test_a_reward_that_fails_is_refused_before_the_run(options):
    with pytest.raises(
        ConfigError, match=r"reward rewarding.broken failed: OSError: no judge answers \(.*rewarding.py:\d+\)"
    ):
        prepare(composed(*RUN, *options))


def test_an_estimator_of_verdicts_takes_the_reward_of_one_function(tmp_path):
    with pytest.raises(ConfigError, match=r"reward.weights are start=1.0, done=1.0: SignedReward is defined for"):
        prepare(composed(*RUN, *SEVERAL, "algo=nsr"))
    prepare(composed(*RUN, *SEVERAL, "algo=nsr", "+reward.weights.done=0"))
    prepare(composed(*RUN, *SEVERAL, "algo=grpo"))
