import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.errors import StaleWeightsError
from apo_lightning.rollout.engine import RolloutEngine, WeightAudit
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.weight_sync import (
    _sampled_columns,
    check_logprob_gap,
    check_policy_version,
    gap_tolerance,
    logprob_gap,
    named_weights,
    publish,
)
from apo_lightning.types import Completion
from engine_bench import context, tiny_llama


def test_weights_are_cast_and_detached():
    weights = list(named_weights(tiny_llama(tied=True), torch.bfloat16))
    assert weights
    for _, weight in weights:
        assert weight.dtype is torch.bfloat16
        assert not weight.requires_grad


def test_the_stream_is_lazy():
    model = tiny_llama(tied=False)
    stream = named_weights(model, torch.float32)
    next(stream)
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
        model.lm_head.weight.fill_(3.0)
    assert dict(stream)["lm_head.weight"].eq(3.0).all()


@given(st.lists(st.tuples(st.floats(-50, 0), st.floats(-50, 0)), min_size=1))
def test_the_gap_is_a_mean_absolute_difference(pairs):
    ours, theirs = torch.tensor(pairs, dtype=torch.float64).T
    expected = sum(abs(a - b) for a, b in pairs) / len(pairs)
    assert logprob_gap(ours, theirs) == pytest.approx(expected)
    assert logprob_gap(ours, theirs) == logprob_gap(theirs, ours)


def test_the_tolerance_is_the_edge():
    tolerance = gap_tolerance(0.04, 900)
    check_logprob_gap(tolerance, tolerance, version=1)
    check_logprob_gap(0.0, tolerance, version=1)
    for bad in (tolerance * 1.01, math.nan, math.inf):
        with pytest.raises(StaleWeightsError, match=r"policy version 7 .* rounding explains 0\.133"):
            check_logprob_gap(bad, tolerance, version=7)


def test_few_tokens_are_allowed_more_scatter_and_float32_none():
    assert gap_tolerance(0.04, 4) == pytest.approx(0.001 + 3 * 0.04 * 2.5)
    assert gap_tolerance(0.04, 10**9) == pytest.approx(0.121, abs=1e-4)
    assert gap_tolerance(0.0, 1) == gap_tolerance(0.0, 10**9) == 0.001


def test_the_gap_of_no_tokens_does_not_pass():
    with pytest.raises(StaleWeightsError):
        check_logprob_gap(logprob_gap(torch.zeros(0), torch.zeros(0)), gap_tolerance(0.0, 0), version=1)


def test_one_completion_of_another_version_is_one_too_many():
    completions = [
        Completion(token_ids=(3,), logprobs=(-1.0,), finish_reason="length", policy_version=version)
        for version in (5, 5, 4)
    ]
    check_policy_version(completions[:2], 5)
    with pytest.raises(StaleWeightsError, match="of policy version 4, and the policy is at version 5"):
        check_policy_version(completions, 5)


def test_the_audit_names_every_problem_and_reads_to_the_end():
    audit = WeightAudit({name: torch.Size([2]) for name in "abcd"})
    items = [("a", 2), ("x", 2), ("b", 3), ("a", 2), ("c", 2)]
    stream = iter([(name, torch.zeros(size)) for name, size in items])
    assert [name for name, _ in audit.watch(stream)] == ["a", "c"]
    assert next(stream, None) is None
    message = "1 missing (d); 1 unknown (x); 1 given twice (a); 1 of another shape (b)"
    with pytest.raises(StaleWeightsError, match=re.escape(message)):
        audit.verify()


def test_many_missing_names_are_counted_and_some_are_shown():
    audit = WeightAudit({f"p{i}": torch.Size([]) for i in range(7)})
    assert list(audit.watch(iter([]))) == []
    with pytest.raises(StaleWeightsError, match=re.escape("7 missing (p0, p1, p2, p3, p4, …)")):
        audit.verify()


def test_later_syncs_compare_a_few_tensors_and_in_time_every_column():
    engine = TransformersEngine(sequences_per_batch=1)
    engine.shapes = {f"w{i}": torch.Size([4096, 64]) for i in range(40)} | {"norm": torch.Size([64])}
    assert _sampled_columns(engine, 1).keys() == engine.shapes.keys()
    engine.unread = {"w0"}
    seen = {name: set() for name in engine.shapes}
    for version in range(2, 102):
        columns = _sampled_columns(engine, version)
        assert len(columns) == 16
        for name, chosen in columns.items():
            width = 1 if name == "norm" else 64
            assert len(range(width)[chosen]) == max(1, width // 4)
            seen[name] |= set(range(width)[chosen])
    assert {name for name, found in seen.items() if len(found) < (1 if name == "norm" else 64)} == {"w0"}


class Quantised(TransformersEngine):
    """Shows the weights of the layers in a quantised form, and the embedding not at all."""

    def held(self, name, columns):
        if "embed" in name:
            return RolloutEngine.held(self, name, columns)
        values = super().held(name, columns)
        return values.to(torch.float8_e4m3fn) if "layers" in name else values


def test_what_an_engine_does_not_show_is_counted_and_said_once(tmp_path, capsys):
    model = tiny_llama(tied=False)
    model.config.save_pretrained(tmp_path)
    engine = Quantised(sequences_per_batch=1)
    engine.setup(context(tmp_path))
    for version in (1, 2, 3):
        publish(model, engine, version)
    said = "".join(capsys.readouterr())
    assert said.count("the transformers engine does not show 19 of 21 tensors as sent") == 1
    assert engine.shapes.keys() - engine.unread == {"model.norm.weight", "lm_head.weight"}
