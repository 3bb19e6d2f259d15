"""A run with a critic: what the values phase writes, what is trained when, and what it reduces to."""

import math
import signal
from dataclasses import dataclass, field, replace

import pytest
import torch
from hydra.errors import InstantiationException
from torch import nn
from transformers import AutoModelForCausalLM

from apo_lightning.advantages import GAE, SignedReward
from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.losses import GRPO
from apo_lightning.parts.critic import Critic
from apo_lightning.rollout.weight_sync import named_weights
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages
from factories import make_rollouts, make_setup
from running import SIGNAL, on_one_and_two_ranks, read_metrics, train_tiny, training_rows, weights, without_clock

CPU = torch.device("cpu")
LEARNS = ("optimizer.lr=1e-2", "algo.critic.optimizer.lr=1e-2", "data.max_completion_tokens=12")
RLOO = ("~algo.advantage", "+algo.advantage._target_=apo_lightning.advantages.LeaveOneOut")
SEPARATE = "algo.critic.kind=separate"


class Told(Critic):
    """A critic whose values are given, one a token of the table."""

    def __init__(self, gae, values):
        self.policy, self.gae, self.told = nn.Linear(1, 1), gae, torch.tensor(values)

    def values(self, microbatch, policy_hidden=None):
        return self.told[microbatch.token_index]


def table_of(statuses, lengths, keep=None):
    rollouts = make_rollouts(statuses, len(statuses), lengths=lengths)
    keep = torch.tensor([keep or [True] * len(statuses)])
    return StepTable(rollouts, Advantages(values=rollouts.rewards, keep=keep), CPU)


def score(table, gae, values):
    critic = Told(gae, values)
    critic.tabled(make_setup(), table)
    return critic.metrics(None, None)


def test_the_table_of_a_correct_and_a_wrong_completion_by_hand():
    # λ = 1: Â = R − V = (0.5, 0.6, 0.4, −0.5, −0.4), whose whitened values test_gae.py derives.
    table = table_of(["correct", "incorrect"], [3, 2])
    metrics = score(table, GAE(), [0.5, 0.4, 0.6, 0.5, 0.4])
    assert table.advantages.tolist() == pytest.approx([0.7220, 0.9120, 0.5320, -1.1780, -0.9880], abs=1e-4)
    assert table.columns["returns"].tolist() == pytest.approx([1, 1, 1, 0, 0])
    # Var(R) = 0.24; R − V has mean 0.12 and mean square 0.236: 1 − (0.236 − 0.0144)/0.24
    assert metrics == {
        "critic/value_mean": pytest.approx(0.48),
        "critic/return_mean": pytest.approx(0.6),
        "critic/explained_variance": pytest.approx(0.076667, abs=1e-6),
    }


def test_dropped_completions_are_not_run_and_in_no_moment():
    kept = table_of(["correct", "incorrect", "correct"], [3, 2, 2], keep=[True, True, False])
    metrics = score(kept, GAE(), [0.5, 0.4, 0.6, 0.5, 0.4, 9.0, 9.0])
    assert kept.columns["values"].tolist()[5:] == [0, 0]
    assert kept.advantages.tolist()[:5] == pytest.approx([0.7220, 0.9120, 0.5320, -1.1780, -0.9880], abs=1e-4)
    assert metrics["critic/return_mean"] == pytest.approx(0.6)


def test_equal_returns_have_no_explained_variance():
    table = table_of(["correct", "correct"], [2, 1])
    metrics = score(table, GAE(), [0.0, 0.0, 0.0])
    assert math.isnan(metrics["critic/explained_variance"])
    assert table.advantages.tolist() == [0, 0, 0]


@dataclass
class Watch:
    """The policy's weights and the critic's at the beginning of each step."""

    policy: list = field(default_factory=list)
    critic: list = field(default_factory=list)

    def __call__(self, critic, setup, table):
        self.policy.append({name: p.detach().clone() for name, p in setup.policy.model.named_parameters()})
        self.critic.append({name: p.detach().clone() for name, p in critic.parameters.items()})
        return TABLED(critic, setup, table)


TABLED = Critic.tabled


@pytest.fixture
def watch(monkeypatch):
    watched = Watch()
    monkeypatch.setattr(Critic, "tabled", lambda *given: watched(*given))
    return watched


def critic_of(module):
    return next(part for part in module.parts if isinstance(part, Critic))


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@dataclass(frozen=True)
class RewardOfAll(SignedReward):
    """`SignedReward(1, 0)` with nothing dropped."""

    positive_weight: float = 1.0
    negative_weight: float = 0.0

    def __call__(self, inputs):
        values = super().__call__(inputs).values.abs()
        return Advantages(values=values, keep=torch.ones_like(values, dtype=torch.bool))


@dataclass(frozen=True, kw_only=True)
class WholeGRPO(GRPO):
    """GRPO that runs every kept token."""

    @property
    def needs(self):
        return replace(super().needs, gradient_on="all")


def test_a_critic_that_stays_at_zero_is_the_signed_reward_of_all_to_the_bit(tmp_path):
    zero = ("algo=ppo", SEPARATE, "algo.advantage.whiten=none", "algo.critic.optimizer.lr=0")
    found = train_tiny(tmp_path / "critic", *SIGNAL, *LEARNS, *zero)
    plain = ("algo=ppo", "algo.critic=null", f"algo.loss._target_={__name__}.WholeGRPO")
    rewards = ("~algo.advantage", f"+algo.advantage._target_={__name__}.RewardOfAll")
    expected = train_tiny(tmp_path / "plain", *SIGNAL, *LEARNS[:1], *LEARNS[2:], *plain, *rewards)
    assert same(weights(expected), weights(found))
    for one, other in zip(training_rows(tmp_path / "plain"), training_rows(tmp_path / "critic"), strict=True):
        assert without_clock(one).items() <= without_clock(other).items()


def test_apo_that_does_not_pull_is_ppo_to_the_bit(tmp_path):
    plain = train_tiny(tmp_path / "ppo", *SIGNAL, *LEARNS, "algo=ppo")
    coefficients = ("algo.loss.push_coef=1", "algo.loss.pull_coef=0")
    same_loss = train_tiny(tmp_path / "apo", *SIGNAL, *LEARNS, "algo=apo_ppo", *coefficients)
    assert same(weights(plain), weights(same_loss))
    # It pulls by default.
    pulls = train_tiny(tmp_path / "pulls", *SIGNAL, *LEARNS, "algo=apo_ppo")
    assert not same(weights(plain), weights(pulls))


@pytest.mark.parametrize("kind", ["value_head", "separate"])
@pytest.mark.parametrize("policy", ["full", "lora"])
def test_warm_up_trains_the_critic_alone(kind, policy, tmp_path, watch):
    options = (f"algo.critic.kind={kind}", "algo.critic.warmup_steps=1", f"policy={policy}", "trainer.max_steps=3")
    module = train_tiny(tmp_path, *SIGNAL, *LEARNS, "algo=ppo", "scheduler.name=linear", *options)
    first, second, third = watch.policy
    assert same(first, second)
    assert not same(second, third)
    assert not any(value.any() for name, value in watch.critic[0].items() if "value_head" in name or kind != "separate")
    assert not same(watch.critic[0], watch.critic[1])
    assert not same(watch.critic[1], watch.critic[2])
    # 2 mini-batches a step, of the two steps that train the policy: the decay ends with the run
    assert module.schedule.last_epoch == 4
    assert module.schedule.get_last_lr() == [0]


def test_what_is_exported_and_sent_to_the_engine_has_no_value_head(tmp_path):
    module = train_tiny(tmp_path, *SIGNAL, *LEARNS, "algo=ppo", "callbacks=export")
    assert any(parameter.any() for parameter in critic_of(module).parameters.values())
    names = {name for name, _ in named_weights(module.policy.model, torch.float32)}
    assert not any("value" in name and "head" in name for name in names)
    exported = tmp_path / "checkpoints" / "final"
    model, report = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not report["unexpected_keys"]
    assert torch.equal(model.get_output_embeddings().weight, module.policy.head_weight)


@pytest.mark.parametrize("options", [("algo=ppo",), ("algo=apo_ppo", SEPARATE, "policy=lora")], ids=" ".join)
def test_stopped_and_gone_on_from_it_is_the_same_run_to_the_bit(options, tmp_path, monkeypatch):
    settings = (*SIGNAL, *LEARNS, "trainer.max_steps=3", "checkpoint.save_every=1", *options)
    whole = train_tiny(tmp_path / "whole", *settings)
    calls = []

    def stopped(critic, setup, table):
        calls.append(None)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        return TABLED(critic, setup, table)

    with monkeypatch.context() as patch:
        patch.setattr(Critic, "tabled", stopped)
        with pytest.raises(Preempted, match="step_000002"):
            train_tiny(tmp_path / "parts", *settings)
    resumed = train_tiny(tmp_path / "parts", *settings, "resume=auto")
    assert same(weights(whole), weights(resumed))
    assert same(dict(critic_of(whole).parameters), dict(critic_of(resumed).parameters))
    both = [[without_clock(row) for row in read_metrics(tmp_path / name)] for name in ("whole", "parts")]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("algo=ppo", *RLOO), "advantage LeaveOneOut"),
        (("algo=ppo", "algo.critic=null"), "algo.advantage is GAE, which reads the values of a critic"),
        (("algo=ppo", "algo.critic.kind=both"), "critic.kind is 'both'"),
        (("algo=ppo", "algo.critic.value_coef=0"), "critic.value_coef is 0"),
        (("algo=ppo", "algo.critic.value_clip=0"), "critic.value_clip is 0"),
        (("algo=ppo", "algo.critic.warmup_steps=-1"), "critic.warmup_steps is -1"),
        (("algo=ppo", "algo.critic.warmup_steps=2"), "trainer.max_steps 2: the policy would never be trained"),
    ],
)
def test_what_cannot_be_is_named_before_weights_are_loaded(options, words, tmp_path):
    with pytest.raises((ConfigError, InstantiationException), match=words):
        train_tiny(tmp_path, *options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    # Of 8 anchors the last one is as likely as a ninth to within rounding.
    [("algo=ppo",), ("algo=apo_ppo", SEPARATE, "algo.loss.anchor_size=6"), ("algo=ppo", "policy=lora")],
    ids=" ".join,
)
def test_two_ranks_are_one_process(options, tmp_path):
    sizes = ("group_size=8", "tokens_per_microbatch=256", "data.num_validation=8", *LEARNS)
    alone, *others = on_one_and_two_ranks(tmp_path, ("ddp_cpu2", "fsdp_cpu2"), *sizes, *options)
    for together in others:
        for one, two in zip(alone, together, strict=True):
            named = [name for name in one if name.startswith(("train/", "apo/", "critic/"))]
            assert "critic/explained_variance" in named
            for name in named:
                expected = pytest.approx(float(one[name] or "nan"), rel=1e-6, abs=1e-6, nan_ok=True)
                assert float(two[name] or "nan") == expected, name
