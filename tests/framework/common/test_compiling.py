"""Compiled functions fail past their variants, under the arguments that torch.compile has and those that it lacks."""

import functools

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit

from apo_lightning.common import compiling


def older_compile(function, *, dynamic, fullgraph):
    """As torch 2.11 has it: no limit of its own."""
    return torch_compile(function, dynamic=dynamic, fullgraph=fullgraph, backend="eager")


torch_compile = torch.compile


def doubled(values, times: int):
    return values * times


@pytest.mark.parametrize("is_older", [False, True])
def test_a_call_past_the_variants_raises(monkeypatch, is_older):
    torch.compiler.reset()
    monkeypatch.setattr(compiling, "MOST_VARIANTS", 2)
    newer = functools.partial(torch_compile, backend="eager")
    monkeypatch.setattr(torch, "compile", older_compile if is_older else newer)
    with torch._dynamo.config.patch(recompile_limit=2, specialize_int=True):
        compiled = compiling.compile_or_fail(doubled)
        for times in (2, 3):
            assert compiled(torch.ones(3), times).tolist() == [times] * 3
        with pytest.raises(FailOnRecompileLimitHit):
            compiled(torch.ones(3), 4)


def test_before_torch_2_13_the_common_limit_is_raised_and_never_lowered(monkeypatch):
    monkeypatch.setattr(torch, "compile", older_compile)
    with torch._dynamo.config.patch(recompile_limit=8):
        compiling.compile_or_fail(doubled)
        assert torch._dynamo.config.recompile_limit == compiling.MOST_VARIANTS
    with torch._dynamo.config.patch(recompile_limit=100):
        compiling.compile_or_fail(doubled)
        assert torch._dynamo.config.recompile_limit == 100
