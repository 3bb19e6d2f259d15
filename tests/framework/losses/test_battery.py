"""Every algorithm of `configs/algo/`, and every option of its loss, against the equations."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from apo_lightning.losses import APO, GRPO, GRPOKL
from apo_lightning.step.plan import token_weights
from apo_lightning.step.settings import AGGREGATIONS
from apo_lightning.types import TOKEN_SETS, token_mask
from apo_methods.losses import CISPO, SAGE, ClipCov, CorrectOnlyKL, DroppedErrors, GridLoss, KLCov, LpReg
from loss_cases import ALGORITHMS, Case, configured_loss, make_case, settings_of, value_and_gradient
from reference.token_losses import loss_and_gradient

OUTSIDE = {"topology": "support_ratio_aux"}
VARIANTS = {
    "dual_clip": GRPO(dual_clip=3.0),
    "clip_eps_high": GRPO(clip_eps_high=0.28),
    "entropy": GRPO(entropy_coef=0.01),
    "k1": GRPOKL(kl_estimator="k1", kl_coef=0.5),
    "k2": GRPOKL(kl_estimator="k2", kl_coef=0.5),
    "k3_unclamped": GRPOKL(kl_clamp=None, kl_coef=0.5),
    "k3_plus": GRPOKL(kl_estimator="k3_plus", kl_coef=0.5),
    "full": GRPOKL(kl_estimator="full", kl_coef=0.5),
    "full_error_only": GRPOKL(kl_estimator="full", kl_coef=0.5, error_only=True),
    "one_anchor": APO(anchor_size=1),
    "all_anchors": APO(anchor_size=12),
    "strong_pull": APO(push_coef=1.5, pull_coef=0.5, dual_clip=3.0, entropy_coef=0.01),
    "incorrect": APO(trigger="incorrect", clip_eps_high=0.28),
    "naive": APO(exclude_sampled=False, anchor_size=3),
    "always": APO(trigger="always", pull_coef=0.15, clip_eps_high=0.28),
    "pushed_alone": GridLoss(topology="none", trigger="always"),
    "without_a_pull": GridLoss(pull_coef=0),
    "exact_kl_on_errors": GridLoss(topology="kl", pull_coef=0.5),
    "exact_kl_everywhere": GridLoss(topology="kl", trigger="always", scale="abs_advantage"),
    "topk_kl": GridLoss(topology="topk_kl", anchor_size=3, trigger="incorrect", pull_coef=2.0),
    "topk_kl_without_its_tail": GridLoss(topology="topk_kl", trigger="always", scale="abs_advantage", tail="drop"),
    "topk_forward_kl_everywhere": GridLoss(topology="topk_forward_kl", trigger="always", anchor_size=3),
    "distillation": GridLoss(topology="topk_forward_kl", trigger="always", tail="drop", push_coef=1),
    "random_forward_kl": GridLoss(topology="topk_forward_kl", anchor_source="random", pool_size=9, anchor_size=4),
    "support_mass": GridLoss(topology="support_mass", trigger="always", exclude_sampled=False),
    "support_mass_of_anchors": GridLoss(topology="support_mass", anchor_source="reference_top_p", top_p=0.5),
    "ungated_always": GridLoss(**OUTSIDE, trigger="always", scale="abs_advantage", anchor_size=3, dual_clip=3.0),
    "ungated_geometric": GridLoss(**OUTSIDE, weights="geometric", anchor_size=3, pull_coef=0.5),
    "uniform": GridLoss(weights="uniform", anchor_size=4),
    "geometric": GridLoss(weights="geometric", trigger="always", anchor_size=4, pull_coef=0.15),
    "pull_only": GridLoss(force="pull_only", trigger="always"),
    "likeliest_anchors": GridLoss(anchor_source="reference_top_p", top_p=0.7),
    "few_of_a_small_pool": GridLoss(anchor_source="random", anchor_size=2, pool_size=7),
    "sage_far_guide": SAGE(guide_ratio=2.0, guide_threshold=0.5, highest_guide=3.0, kl_coef=0.5, error_only=True),
    "correct_only_full": CorrectOnlyKL(kl_estimator="full", kl_coef=0.5),
    "half_of_the_errors_dropped": DroppedErrors(drop_fraction=0.5, dual_clip=3.0, entropy_coef=0.01),
    "lp_reg_of_all_errors": LpReg(fraction=1, kl_coef=0.5, clip_eps=0.2, clip_eps_high=0.3, dual_clip=3.0),
}
NAMES = (*ALGORITHMS, *VARIANTS)
KINDS = ("plain", "far", "confident", "narrow", "absent", "weighted")


def loss_of(name):
    """Composed when a test asks for it: every process collects this file, and composing all takes seconds."""
    return VARIANTS[name] if name in VARIANTS else configured_loss(name)


def usable_kinds(loss):
    """A penalty needs its reference on every penalised token, and a finite one."""
    if loss.needs.full_kl:
        return [kind for kind in KINDS if kind not in ("absent", "narrow")]
    return [kind for kind in KINDS if not (isinstance(loss, GRPOKL) and kind == "absent")]


def close(actual, expected, kind):
    expected = torch.tensor(expected, dtype=torch.float64)
    tolerance = 1e-5 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance, msg=lambda found: f"{kind}: {found}")


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_follow_the_equations(name):
    loss = loss_of(name)
    for kind in usable_kinds(loss):
        case = make_case(kind).prepared(loss)
        values, gradient, _ = value_and_gradient(loss, case)
        expected = [loss_and_gradient(settings_of(loss), token) for token in case.tokens()]
        close(values, [value for value, _ in expected], kind)
        close(gradient, [row for _, row in expected], kind)


STRAIGHT_THROUGH = (
    *("k3_plus", "apo_cross_entropy", "apo_gate_only", "apo_log_mass", "pull_only", "cispo", "gspo", "gmpo"),
    *("entropy_advantage", "sage", "sage_far_guide"),
)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in STRAIGHT_THROUGH])
def test_the_reference_gradient_is_the_slope_of_the_reference_value(name):
    loss = loss_of(name)
    options, step = settings_of(loss), 1e-6
    for token in make_case("plain", num_tokens=12, seed=3).prepared(loss).tokens():
        _, gradient = loss_and_gradient(options, token)
        for v, slope in enumerate(gradient):
            above, below = list(token.logits), list(token.logits)
            above[v] += step
            below[v] -= step
            up, _ = loss_and_gradient(options, replace(token, logits=above))
            down, _ = loss_and_gradient(options, replace(token, logits=below))
            assert (up - down) / (2 * step) == pytest.approx(slope, abs=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_finite_and_metrics_constant_and_of_each_token(name):
    loss = loss_of(name)
    for kind in usable_kinds(loss):
        values, gradient, output = value_and_gradient(loss, make_case(kind, seed=1))
        assert values.isfinite().all(), kind
        assert gradient.isfinite().all(), kind
        assert output.metrics
        assert all(m.shape == values.shape and not m.requires_grad for m in output.metrics.values())
    values, gradient, _ = value_and_gradient(loss, take(make_case("plain"), torch.arange(0)))
    assert (values.shape, gradient.shape) == ((0,), (0, 12))


WIDER = ("exact_kl_everywhere", "topk_kl_without_its_tail", "ungated_always")
"""Their divergence is scaled by |A|: it is logged on tokens of A = 0, and has no gradient there."""


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), spread=st.floats(0.01, 30))
def test_outside_of_what_a_loss_declares_it_has_no_gradient(name, seed, spread):
    loss, case = loss_of(name), make_case("plain", seed=seed)
    at_y = case.logits.log_softmax(1).gather(1, case.token_ids[:, None])[:, 0]
    generator = torch.Generator().manual_seed(seed)
    case = replace(case, old_logprobs=at_y - spread * torch.randn(len(at_y), generator=generator))
    mask = loss.needs.gradient_mask(case.advantages, case.is_correct)
    assert (value_and_gradient(loss, case)[1][~mask] == 0).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WIDER])
def test_a_smaller_set_of_tokens_would_lose_a_gradient(name):
    loss, case = loss_of(name), make_case("plain")
    case = replace(case, advantages=case.advantages.roll(1))  # A = 0 at the first token of each completion
    which = TOKEN_SETS.index(loss.needs.gradient_on or "all")
    smaller = token_mask(TOKEN_SETS[which - 1], case.advantages, case.is_correct)
    assert which > 0
    assert (value_and_gradient(loss, case)[1][~smaller] != 0).any()


BESIDE = (GRPOKL, CISPO, ClipCov, DroppedErrors, KLCov, LpReg)
"""Losses with a term outside the surrogate, or whose `clip_fraction` counts something else than flat tokens."""


def is_beside(loss):
    """`clip_fraction` of `pull_only` is APO's, whose push has a gradient where there is no anchor."""
    if isinstance(loss, GridLoss):
        return loss.topology not in ("ratio", "none") or loss.force == "pull_only"
    return isinstance(loss, BESIDE) or loss.entropy_coef != 0


def test_clip_fraction_marks_exactly_the_tokens_without_a_surrogate_gradient():
    losses = {name: loss_of(name) for name in NAMES}
    surrogates = [(name, kind) for name, loss in losses.items() if not is_beside(loss) for kind in usable_kinds(loss)]
    assert {"grpo", "apo", "one_anchor", "uniform"} <= {name for name, _ in surrogates}
    for name, kind in surrogates:
        case = make_case(kind, seed=2)
        _, gradient, output = value_and_gradient(losses[name], case, dtype=torch.float64)
        clipped = output.metrics["clip_fraction"]
        moving = case.advantages != 0
        assert clipped[~moving].isnan().all(), (name, kind)
        assert (clipped[moving] == (gradient[moving] == 0).all(1)).all(), (name, kind)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_loss_did_not_ask_the_reference_for_cannot_reach_it(name):
    """Off its own mask a row may hold anything: the module writes placeholders there."""
    loss = loss_of(name)
    case = make_case("plain").prepared(loss)
    logits = case.logits.clone().requires_grad_()
    inputs = case.inputs(loss.needs, logits)
    unread = ~loss.needs.reference_mask(case.advantages, case.is_correct)
    garbage = {}
    if inputs.ref_logprobs is not None:
        garbage["ref_logprobs"] = torch.where(unread, torch.nan, inputs.ref_logprobs)
    if inputs.full_kl is not None:
        garbage["full_kl"] = torch.where(unread, torch.nan, inputs.full_kl)
    if inputs.anchor is not None:
        garbage["anchor"] = replace(
            inputs.anchor, ref_logprobs=torch.where(unread[:, None], torch.nan, inputs.anchor.ref_logprobs)
        )
    expected, actual = loss(inputs), loss(replace(inputs, **garbage))
    assert torch.equal(actual.per_token, expected.per_token)
    gradients = [torch.autograd.grad(out.per_token.sum(), logits, retain_graph=True)[0] for out in (expected, actual)]
    assert torch.equal(*gradients)


def take(case: Case, index) -> Case:
    picked = {
        name: getattr(case, name)[index] for name in ("logits", "token_ids", "old_logprobs", "advantages", "is_correct")
    }
    columns = {name: values[index] for name, values in case.columns.items()}
    return Case(**picked, ref_logits=[case.ref_logits[i] for i in index.tolist()], columns=columns)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_neither_order_nor_micro_batches_change_the_weighted_sum(name, mode):
    loss = loss_of(name)
    case = make_case("plain").prepared(loss)
    lengths = torch.tensor([5, 20, 3, 20])
    weights = token_weights(lengths, torch.tensor([True, True, False, True]), mode, max_completion_tokens=20)
    whole = weighted_gradient(loss, case, weights, [torch.arange(48)])
    shuffled = weighted_gradient(loss, case, weights, [torch.randperm(48, generator=torch.Generator().manual_seed(0))])
    split = weighted_gradient(loss, case, weights, torch.arange(48).split([5, 20, 3, 20]))
    torch.testing.assert_close(shuffled, whole, rtol=0, atol=1e-7)
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-7)


def weighted_gradient(loss, case, weights, parts):
    """[T, V] gradient of Σ_t w_t·loss_t, in the original order, gathered over micro-batches."""
    total = torch.zeros_like(case.logits)
    for index in parts:
        part = take(case, index)
        logits = part.logits.clone().requires_grad_()
        scalar = (weights[index] * loss(part.inputs(loss.needs, logits)).per_token).sum()
        total[index] += torch.autograd.grad(scalar, logits)[0]
    return total
