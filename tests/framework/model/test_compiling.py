"""Compiled decoder layers compute what eager ones do, and few graphs serve every micro-batch."""

import functools
import random

import pytest
import torch
from torch._dynamo.utils import counters

from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy, Reference
from composing import tiny_policy
from factories import logprob_sum

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def from_scratch():
    """Each test compiles anew, and fails where torch would give up compiling."""
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    yield
    torch._dynamo.config.fail_on_recompile_limit_hit = False
    torch.compiler.reset()


@pytest.fixture
def without_kernels(monkeypatch):
    """Traced and differentiated as ever, but run by torch's own kernels: to build others takes a compiler minutes."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


def compiled_policy(**changes) -> Policy:
    policy = tiny_policy(compile_layers=True, **changes)
    policy.compile_layers()
    return policy


def a_microbatch(seed):
    draw = random.Random(seed)
    sequences = PackedSequences(
        prompts=[tuple(draw.choices(range(5, 40), k=draw.randint(1, 9))) for _ in range(2)],
        completions=[tuple(draw.choices(range(5, 40), k=draw.randint(1, 9))) for _ in range(4)],
        owners=[0, 0, 1, 1],
    )
    (microbatch,) = sequences.microbatches([0, 1, 2, 3], 1000, CPU)
    return microbatch


def gradients(policy, microbatch):
    policy.zero_grad()
    logprob_sum(policy, microbatch).backward()
    return [parameter.grad for parameter in policy.parameters() if parameter.requires_grad]


def largest_difference(found, exact):
    scale = max(gradient.abs().max() for gradient in exact)
    return max((one - two).abs().max() / scale for one, two in zip(found, exact, strict=True))


def graphs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_gradients_are_those_of_eager_layers_and_graphs_hold_for_any_lengths(gradient_checkpointing):
    eager = tiny_policy(gradient_checkpointing=gradient_checkpointing)
    compiled = compiled_policy(gradient_checkpointing=gradient_checkpointing)
    before = graphs()
    for seed in range(4):
        microbatch = a_microbatch(seed)
        found = gradients(compiled, microbatch)
        assert largest_difference(found, gradients(eager, microbatch)) <= 1e-5
        if seed == 1:
            after_two = graphs()
    assert before < graphs() == after_two


@pytest.mark.usefixtures("without_kernels")
def test_parameters_keep_their_names_and_a_copy_is_not_compiled_with_them():
    policy = compiled_policy()
    assert dict(policy.named_parameters()).keys() == dict(tiny_policy().named_parameters()).keys()
    reference, before = Reference(policy), graphs()
    reference.hidden_states(a_microbatch(0))
    assert graphs() == before
    reference.policy.compile_layers()
    reference.hidden_states(a_microbatch(0))
    assert graphs() > before
