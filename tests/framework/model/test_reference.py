"""The reference over a run: when it follows the policy, by how much, and that otherwise not a bit of it moves."""

from types import SimpleNamespace

import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from apo_lightning.errors import ConfigError
from apo_lightning.model.lora import LoRA, merged_parameters
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.model.reference import ReferenceSchedule
from apo_lightning.parts.averaging import BaseAveraging, average, base_weights
from apo_lightning.parts.moving_reference import MovingReference
from composing import composed

CPU = torch.device("cpu")
SPEC = instantiate(composed("model=tiny").model, _convert_="all")
WEIGHTS = st.floats(0, 1, width=32)


def make_policy(dtype=torch.float32) -> Policy:
    return Policy(SPEC.load_model(1), SPEC.load_tokenizer(), dtype)


def made(schedule: ReferenceSchedule, dtype=torch.float32) -> tuple[Policy, MovingReference]:
    policy = make_policy(dtype)
    reference = Reference(policy, is_mixed=schedule.mixes)
    reference.to(CPU)
    return policy, MovingReference(reference, schedule)


def after_optimizer_step(part: MovingReference, policy: Policy) -> None:
    part.optimizer_step(SimpleNamespace(policy=policy), policy_moved=True)


def after_step(part: MovingReference, policy: Policy, step: int) -> bool:
    """True if the optimizer starts again."""
    optimizer = SimpleNamespace(state={"moments": 1})
    part.updated(SimpleNamespace(policy=policy), step, optimizer)
    return not optimizer.state


def move(policy: nn.Module, by: float) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(by)


def tensors(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def are_equal(some, others) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def logprobs(policy: Policy) -> torch.Tensor:
    sequences = PackedSequences(prompts=[(5, 6, 7)], completions=[(11, 12), (13, 14, 15, 16)], owners=[0, 0])
    (microbatch,) = sequences.microbatches([0, 1], 100, CPU)
    with torch.no_grad():
        return policy(microbatch).logprobs


@given(st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=8), WEIGHTS)
def test_an_average_is_that_of_float64_and_its_ends_are_exact(values, weight):
    theta, other = torch.tensor(values), torch.tensor(values).flip(0)
    found = {"w": theta.clone()}
    average(found, {"w": other}, weight)
    expected = (1 - weight) * theta.double() + weight * other.double()
    torch.testing.assert_close(found["w"].double(), expected, atol=1e-6, rtol=0)
    if weight in (0, 1):
        assert torch.equal(found["w"], other if weight else theta)


def test_a_rule_acts_after_its_steps_by_hand():
    reset, refresh = ReferenceSchedule(reset_every=3), ReferenceSchedule(refresh_every=2)
    # The reference of steps 1-3 is the first, of steps 4-6 the policy after step 3.
    assert [reset.age(step) for step in range(1, 8)] == [0, 1, 2, 0, 1, 2, 0]
    assert [reset.policy_weight(step) for step in range(1, 7)] == [0, 0, 1, 0, 0, 1]
    assert [refresh.policy_weight(step) for step in range(1, 5)] == [0, 0.6, 0, 0.6]
    for constant in (ReferenceSchedule(), ReferenceSchedule(ema_tau=0.9)):
        assert constant.age(1) is None
        assert constant.policy_weight(1) == 0
    assert [s.mixes for s in (reset, refresh, ReferenceSchedule(refresh_every=2, refresh_alpha=1.0))] == [0, 1, 0]


def test_refreshed_twice_it_is_the_mixture_derived_by_hand():
    policy, part = made(ReferenceSchedule(refresh_every=1, refresh_alpha=0.6))
    start = [t.double() for t in tensors(policy)]
    for step in (1, 2):
        move(policy, 1.0)
        assert not after_step(part, policy, step)
    # θ_0 = 0: 0.6·1 = 0.6, then 0.4·0.6 + 0.6·2 = 1.44.
    for found, base in zip(tensors(part.reference.policy), start, strict=True):
        torch.testing.assert_close(found.double(), base + 1.44, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_moving_average_keeps_increments_that_bfloat16_would_lose(dtype):
    policy, part = made(ReferenceSchedule(ema_tau=0.99), dtype)
    start = [t.double() for t in tensors(policy)]
    assert {parameter.dtype for parameter in part.reference.policy.parameters()} == {torch.float32}
    move(policy, 0.001)
    for _ in range(10):
        after_optimizer_step(part, policy)
    # (1 − 0.99^10)·0.001, less than half a unit in the last place of most weights in bfloat16
    for found, base in zip(tensors(part.reference.policy), start, strict=True):
        torch.testing.assert_close(found.double(), base + (1 - 0.99**10) * 0.001, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "still",
    [
        ReferenceSchedule(ema_tau=1.0),
        ReferenceSchedule(refresh_every=1, refresh_alpha=0.0),
        ReferenceSchedule(refresh_every=10**9),
        ReferenceSchedule(reset_every=10**9),
    ],
    ids=["tau=1", "alpha=0", "never refreshed", "never reset"],
)
def test_a_rule_at_its_end_is_the_frozen_reference_to_the_bit(dtype, still):
    policy, frozen = made(ReferenceSchedule(), dtype)
    _, part = made(still, dtype)
    expected = logprobs(frozen.reference.policy)
    for step in (1, 2):
        move(policy, 0.01)
        for one in (frozen, part):
            after_optimizer_step(one, policy)
            assert not after_step(one, policy, step)
    assert torch.equal(logprobs(part.reference.policy), expected)
    names = {f"reference.{name}" for name, _ in policy.model.named_parameters()}
    assert part.tensors.keys() == names


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_after_a_reset_it_says_what_the_policy_says_to_the_bit(dtype):
    policy, part = made(ReferenceSchedule(reset_every=2), dtype)
    move(policy, 0.01)
    assert not after_step(part, policy, 1)
    assert not torch.equal(logprobs(part.reference.policy), logprobs(policy))
    assert after_step(part, policy, 2)
    assert torch.equal(logprobs(part.reference.policy), logprobs(policy))
    layers = part.reference.policy.model.base_model.layers
    assert layers[0].mlp.up_proj.weight.dtype == dtype  # still half the memory


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reset_every": 5, "ema_tau": 0.9}, r"reset_every=5 and reference\.ema_tau=0\.9: the reference follows one"),
        ({"refresh_every": 0}, r"refresh_every is 0: give a number of at least 1, or null"),
        ({"refresh_alpha": 1.5}, r"refresh_alpha is 1\.5: give a number from 0 to 1"),
        ({"ema_tau": -0.1}, r"ema_tau is -0\.1"),
    ],
)
def test_a_rule_that_cannot_work_is_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        ReferenceSchedule(**options)


def test_the_policy_is_averaged_with_the_weights_it_began_with():
    policy = make_policy()
    start, averaging = tensors(policy), BaseAveraging(weight=0.25, every_n_steps=2)
    setup = SimpleNamespace(policy=policy)
    averaging.begin(setup)
    move(policy, 1.0)
    averaging.updated(setup, 1, None)
    moved = tensors(policy)
    averaging.updated(setup, 2, None)
    for found, base, before in zip(tensors(policy), start, moved, strict=True):
        torch.testing.assert_close(found, base + 0.75, atol=1e-6, rtol=0)
        torch.testing.assert_close(before, base + 1, atol=1e-6, rtol=0)
    for options, message in (({"weight": 1}, "weight is 1"), ({"every_n_steps": 0}, "every_n_steps is 0")):
        with pytest.raises(ConfigError, match=message):
            BaseAveraging(**options)


def test_adapters_are_averaged_as_the_merged_model_is():
    policy = make_policy()
    base = {name: p.clone() for name, p in merged_parameters(policy.model)}
    LoRA(rank=4).attach(policy.model, seed=1)
    initial = base_weights(policy.model)
    assert initial
    assert all(".lora_B." in name and not weight.any() for name, weight in initial.items())
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    trained = {name: p.clone() for name, p in merged_parameters(policy.model)}
    average(dict(policy.model.named_parameters()), initial, 0.3)
    num_moved = 0
    for name, found in merged_parameters(policy.model):
        expected = 0.7 * trained[name].double() + 0.3 * base[name].double()
        torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)
        num_moved += not torch.equal(trained[name], base[name])
    assert num_moved == len(initial)
