"""What the paper claims of APO, and what it reduces to."""

from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO
from apo_lightning.losses.functional import anchor_log_ratio
from apo_lightning.types import Anchor, LossInputs
from loss_cases import make_case, value_and_gradient

# One token over five: the policy and the reference differ, the sampled token y = 1 is in the reference's top 3.
LOGITS = torch.tensor([[0.3, 1.0, -0.5, 0.8, -1.0]], dtype=torch.float64)
REF_LOGPROBS = torch.tensor([[0.30, 0.35, 0.20, 0.10, 0.05]], dtype=torch.float64).log()
Y = torch.tensor([1])
TOP_3 = torch.tensor([[1, 0, 2]])
EXCLUSIVE = torch.tensor([0, 2])


def inputs(logits, *, advantage=-1.0, is_correct=False, log_ratio=0.0, ref_logprobs=REF_LOGPROBS, ids=TOP_3, y=Y):
    logprobs = logits.log_softmax(1)
    at_y = logprobs.gather(1, y[:, None])[:, 0]
    return LossInputs(
        token_ids=y,
        sequence_ids=torch.zeros_like(y),
        logprobs=at_y,
        old_logprobs=at_y.detach() - log_ratio,
        advantages=torch.full_like(at_y.detach(), advantage),
        is_correct=torch.full_like(y, is_correct, dtype=torch.bool),
        anchor=Anchor(
            token_ids=ids,
            ref_logprobs=ref_logprobs.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf),
            logprobs=logprobs.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf),
        ),
    )


def loss_gradient(loss, **kwargs):
    logits = LOGITS.clone().requires_grad_()
    output = loss(inputs(logits, **kwargs))
    return torch.autograd.grad(output.per_token.sum(), logits)[0][0]


def mass_gradient(ids):
    """∇_z Σ_{k ∈ ids} π(k), by autograd."""
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(logits.softmax(1)[0, ids].sum(), logits)[0][0]


# ---------------------------------------------------------------------------------------------- reductions


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["plain", "far", "confident", "narrow", "absent", "weighted"]))
def test_push_one_and_pull_zero_is_grpo_bit_for_bit(seed, kind):
    case = make_case(kind, seed=seed)
    value, gradient, _ = value_and_gradient(APO(push_coef=1.0, pull_coef=0.0), case)
    expected, expected_gradient, _ = value_and_gradient(GRPO(), case)
    assert torch.equal(value, expected)
    assert torch.equal(gradient, expected_gradient)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    push=st.floats(1.0, 2.0),
    pull=st.floats(0.0, 0.15),
    k=st.integers(1, 12),
    naive=st.booleans(),
)
def test_without_errors_it_is_grpo_bit_for_bit_for_any_coefficients(seed, push, pull, k, naive):
    case = make_case("far", seed=seed)
    case.advantages.abs_()
    apo = APO(push_coef=push, pull_coef=pull, anchor_size=k, exclude_sampled=not naive)
    value, gradient, _ = value_and_gradient(apo, case)
    expected, expected_gradient, _ = value_and_gradient(GRPO(), case)
    assert torch.equal(value, expected)
    assert torch.equal(gradient, expected_gradient)


# ---------------------------------------------------------------------------------------------- golden


def test_a_golden_token():
    """π = (1/2, 1/4, 1/4), π_ref = (1/4, 1/4, 1/2), K = 2: T_K = {2, 0}; y = 0, so S = {2} and Z_ref = 1/2.

    r = 1, r_anchor = (1/4)/(1/2) = 1/2, ρ = 1.05 − 0.05 = 1; with A = −2: loss = 2.
    dρ/dz_v = π(v)·(c_v − ρ), c = (1.05/(1/2), 0, −0.1/(1/2)) = (2.1, 0, −0.2): (0.55, −0.25, −0.3); times −A = 2.
    """
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log().requires_grad_()
    ref = torch.tensor([[0.25, 0.25, 0.5]]).log()
    given = inputs(logits, advantage=-2.0, ref_logprobs=ref, ids=torch.tensor([[2, 0]]), y=torch.tensor([0]))
    output = APO(anchor_size=2)(given)
    torch.testing.assert_close(output.per_token.detach(), torch.tensor([2.0]))
    (gradient,) = torch.autograd.grad(output.per_token.sum(), logits)
    torch.testing.assert_close(gradient, torch.tensor([[1.1, -0.5, -0.6]]))
    metrics = {name: round(value.item(), 6) for name, value in output.metrics.items()}
    # pull = |A|·β·r_anchor·(1 − Σ_S π) = 2 · 0.1 · 0.5 · 0.75
    assert metrics == {
        "clip_fraction": 0.0,
        "ratio_updated": 1.0,
        "apo/triggered_fraction": 1.0,
        "apo/anchor_ratio": 0.5,
        "apo/ref_anchor_mass": 0.5,
        "apo/saturated_fraction": 0.0,
        "apo/pull": 0.075,
    }


def test_a_pull_as_wide_as_the_upper_clip_is_refused_where_correct_answers_are_pulled_too():
    always = {"push_coef": 1.1, "clip_eps": 0.2, "trigger": "always"}
    with pytest.raises(ConfigError, match=r"0\.2, not below the upper clip 0\.2:"):
        APO(pull_coef=0.2, **always)
    with pytest.raises(ConfigError, match=r"0\.25, not below the upper clip 0\.22:"):
        APO(pull_coef=0.25, clip_eps_high=0.22, **always)
    assert APO(pull_coef=0.19, **always).trigger == APO(pull_coef=0.2, clip_eps_high=0.22, **always).trigger == "always"


def test_advantages_under_which_it_never_acts_or_acts_on_correct_answers_are_refused():
    plain, spares, punishes = (
        SimpleNamespace(advantage=SimpleNamespace(**says))
        for says in ({}, {"spares_errors": True}, {"punishes_correct": True})
    )
    with pytest.raises(ConfigError, match="gives no error A < 0"):
        APO().check(spares)
    with pytest.raises(ConfigError, match=r"set algo\.loss\.trigger=incorrect"):
        APO().check(punishes)
    for loss, recipe in ((APO(), plain), (APO(trigger="always"), spares), (APO(trigger="incorrect"), punishes)):
        loss.check(recipe)
        APO(pull_coef=0).check(recipe)  # nothing is triggered


def test_metrics_of_errors_are_nan_on_other_tokens():
    metrics = APO()(inputs(LOGITS, advantage=1.0)).metrics
    assert metrics["apo/triggered_fraction"].item() == 0.0
    assert all(metrics[name].isnan().all() for name in metrics if name.startswith("apo/") and "triggered" not in name)


# ---------------------------------------------------------------------------------------------- propositions


def test_the_pull_is_collinear_with_the_gradient_of_support_coverage():
    """Proposition B.1: pull = −(β|A|/Z_ref)·∇J_support over S, as a loss."""
    pull = loss_gradient(APO(), advantage=-2.0) - loss_gradient(APO(pull_coef=0.0), advantage=-2.0)
    z_ref = REF_LOGPROBS.exp()[0, EXCLUSIVE].sum()
    torch.testing.assert_close(pull, -(0.1 * 2.0 / z_ref) * mass_gradient(EXCLUSIVE))


@pytest.mark.parametrize("log_ratio", [0.0, 0.1])
def test_the_master_identity(log_ratio):
    """∂ρ/∂z_v = π(v)·(c_v − ρ); the loss is |A|·ρ on an unsaturated error."""
    probs, z_ref = LOGITS.softmax(1)[0], REF_LOGPROBS.exp()[0, EXCLUSIVE].sum()
    r = torch.tensor(log_ratio, dtype=torch.float64).exp()
    rho = 1.05 * r - 0.1 * probs[EXCLUSIVE].sum() / z_ref
    c = torch.zeros(5, dtype=torch.float64)
    c[1] = 1.05 / (probs[1] / r)
    c[EXCLUSIVE] = -0.1 / z_ref
    torch.testing.assert_close(loss_gradient(APO(), advantage=-3.0, log_ratio=log_ratio), 3.0 * probs * (c - rho))


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 12), beta=st.floats(0.01, 0.2))
def test_exclusive_anchoring_never_raises_the_error(seed, k, beta):
    """A descent step on the pull alone lowers z_y wherever S holds anything."""
    case = make_case("plain", seed=seed)
    _, with_pull, output = value_and_gradient(APO(anchor_size=k, pull_coef=beta), case, torch.float64)
    _, push, _ = value_and_gradient(APO(anchor_size=k, pull_coef=0.0), case, torch.float64)
    free = (output.metrics["clip_fraction"] == 0) & (output.metrics["apo/triggered_fraction"] == 1)
    pull_at_y = (with_pull - push).gather(1, case.token_ids[:, None])[:, 0]
    assert (pull_at_y[free] >= -1e-12).all()


def test_naive_anchoring_cancels_the_signal():
    """With y among its own anchors the pull raises z_y; without, it lowers it. Gradients of a loss: signs reversed."""
    push = loss_gradient(APO(pull_coef=0.0))[1]
    exclusive = loss_gradient(APO())[1]
    naive = loss_gradient(APO(exclude_sampled=False))[1]
    assert naive < push < exclusive


@settings(max_examples=50)
@given(st.lists(st.floats(-8, 8), min_size=5, max_size=5), st.integers(0, 4), st.integers(2, 5))
def test_at_the_reference_the_rectified_ratio_is_push_minus_pull_for_any_mass(logits, y, k):
    ref = torch.tensor([logits], dtype=torch.float64).log_softmax(1)
    ids = ref.topk(k).indices
    output = APO(anchor_size=k)(inputs(ref, ref_logprobs=ref, ids=ids, y=torch.tensor([y])))
    assert output.per_token.item() == pytest.approx(1.05 - 0.1, rel=1e-6)


@pytest.mark.parametrize(("r_anchor", "saturated"), [(2.49, 0.0), (2.51, 1.0)])
def test_push_and_pull_vanish_together_once_the_anchor_ratio_exceeds_two_and_a_half(r_anchor, saturated):
    """At r = 1: ρ = 1.05 − 0.1·r_anchor falls below 0.8 at r_anchor = 2.5."""
    mass = LOGITS.softmax(1)[0, EXCLUSIVE].sum()
    ref = (LOGITS.softmax(1) / r_anchor).log()
    assert mass < 1
    assert APO()(inputs(LOGITS, ref_logprobs=ref)).metrics["apo/saturated_fraction"].item() == saturated
    assert bool((loss_gradient(APO(), ref_logprobs=ref) == 0).all()) is bool(saturated)


def test_a_pull_that_the_dual_clip_takes_away_is_not_logged():
    assert APO(dual_clip=3.0)(inputs(LOGITS, advantage=-2.0, log_ratio=2.0)).metrics["apo/pull"].isnan().all()


# ---------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("ids", [[[1]], [[-1]], [[-1, -1]], [[1, -1]]])
def test_an_empty_anchor_set_pulls_nothing_and_pushes_by_lambda(ids):
    ids = torch.tensor(ids)
    output = APO()(inputs(LOGITS, ids=ids))
    assert output.per_token.item() == pytest.approx(1.05)
    assert output.metrics["apo/anchor_ratio"].item() == 0.0
    assert output.metrics["apo/ref_anchor_mass"].item() == 0.0
    torch.testing.assert_close(loss_gradient(APO(), ids=ids), 1.05 * loss_gradient(GRPO()))


@pytest.mark.parametrize(
    ("policy", "ref", "is_member"),
    [([-0.5, -torch.inf], [-0.1, -torch.inf], False), ([-torch.inf, -torch.inf], [-0.7, -0.7], True)],
    ids=["no anchor", "no mass of the policy on the anchors"],
)
def test_without_a_mass_ratio_and_gradient_are_exactly_zero(policy, ref, is_member):
    logprobs = torch.tensor([policy], requires_grad=True)
    with torch.autograd.detect_anomaly():  # not even a NaN that is masked later
        ratio = anchor_log_ratio(logprobs, torch.tensor([ref]), torch.full((1, 2), is_member)).exp()
        ratio.sum().backward()
    assert ratio.item() == 0.0
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.0, 0.0]]


def test_a_vanishing_reference_mass_is_not_biased():
    """Z_ref = 2·10⁻¹² and Σ_S π the same: r_anchor is 1, which an epsilon in the denominator would make 0."""
    tiny = torch.full((1, 2), 1e-12).log()
    ratio = anchor_log_ratio(tiny, tiny.clone(), torch.ones(1, 2, dtype=torch.bool)).exp()
    assert ratio.item() == pytest.approx(1.0, rel=1e-5)
