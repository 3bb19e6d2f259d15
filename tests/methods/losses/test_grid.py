"""The grid's cells on one token worked out by hand, and the cells that are a known algorithm."""

import itertools

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import dist, random_states, seeded
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO, GRPOKL
from apo_lightning.losses.trial import loss_inputs
from apo_lightning.types import Anchor, LossInputs
from apo_methods.losses import GridLoss
from apo_methods.losses.anchor_sets import partition_kl
from loss_cases import configured_loss, make_case, value_and_gradient

# K = 2: T = S = {0, 1}, J = 1/2, J_ref = Z_ref = 3/4; y = 3: r_anchor = 2/3
POLICY = dist(0.2, 0.3, 0.1, 0.4)
REFERENCE = dist(0.5, 0.25, 0.125, 0.125)
SURE = dist(0.1, 0.05, 0.01, 0.84)
OUTSIDE = {"topology": "support_ratio_aux", "scale": "abs_advantage"}


def inputs_of(loss, y=3, advantage=-1.0, reference=REFERENCE):
    """(inputs, logits) of one token at r = 1."""
    logits = POLICY.log()[None].requires_grad_()
    values = torch.tensor([advantage], dtype=torch.float64)
    ids, old = torch.tensor([y]), logits.detach().log_softmax(1)[:, y]
    return loss_inputs(loss, logits, reference.log()[None], ids, torch.tensor([0]), values, values > 0, old), logits


def on_token(loss, y=3, advantage=-1.0, reference=REFERENCE):
    """(loss, its gradient by the logits, metrics) of one token at r = 1."""
    inputs, logits = inputs_of(loss, y, advantage, reference)
    output = loss(inputs)
    (gradient,) = torch.autograd.grad(output.per_token.sum(), logits)
    return output.per_token.item(), gradient[0], {name: values.item() for name, values in output.metrics.items()}


def near(found, expected, tolerance=1e-12):
    # A force on a token that has become improbable is in the thousands, and rounded accordingly.
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), atol=tolerance, rtol=1e-14)


def penalty(topology, **settings):
    """(D, its gradient) on a token of A = 0, where there is no other term."""
    loss = GridLoss(**{"trigger": "always", "anchor_size": 2, "pull_coef": 1.0, "topology": topology} | settings)
    value, gradient, _ = on_token(loss, advantage=0.0)
    return value, gradient


@pytest.mark.parametrize(
    ("topology", "value", "gradient"),
    [
        # Σ π·log(π/π_ref);   π·(log(π/π_ref) − D)
        ("kl", 0.314384, (-0.2461, -0.0396, -0.0538, 0.3395)),
        # .2·log .4 + .3·log 1.2 + .5·log 2
        ("topk_kl", 0.218012, (-0.2269, -0.0107, 0.0475, 0.1901)),
        # .5·log 2.5 + .25·log(.25/.3) + .25·log(.25/.5);   π − π_ref, the bucket's .5 − .25 as .05 and .2
        ("topk_forward_kl", 0.239278, (-0.3, 0.05, 0.05, 0.2)),
        # 1 − J;   minus ∂J = π·(1[v∈T] − J)
        ("support_mass", 0.5, (-0.1, -0.15, 0.05, 0.2)),
        # −r_anchor;   ∂J/J_ref with the sign turned
        ("support_ratio_aux", -2 / 3, (-0.4 / 3, -0.2, 0.2 / 3, 0.8 / 3)),
    ],
)
def test_each_divergence_has_the_value_and_the_gradient_of_the_table(topology, value, gradient):
    found, slope = penalty(topology)
    assert found == pytest.approx(value, abs=1e-6)
    near(slope, gradient, 1e-4 if "kl" in topology else 1e-12)


def test_over_the_whole_vocabulary_the_forward_kl_is_exact():
    """Σ π_ref·log(π_ref/π), with gradient π − π_ref."""
    value, gradient = penalty("topk_forward_kl", anchor_size=4)
    assert value == pytest.approx(0.295064, abs=1e-6)
    near(gradient, POLICY - REFERENCE)
    near(penalty("topk_kl", anchor_size=4)[1], penalty("kl")[1])


def test_without_its_tail_a_divergence_is_none():
    """At π = π_ref: D = 0, and ∂D/∂z = J·π − 1[v∈T]·π is not; at {1} alone D = .25·log(.25/.3) < 0."""
    loss = GridLoss(topology="topk_forward_kl", trigger="always", tail="drop", anchor_size=2, pull_coef=1.0)
    force = token_forces(loss, REFERENCE.log(), REFERENCE, 3, 0.0)
    near(force, -(0.75 * REFERENCE - torch.tensor([0.5, 0.25, 0, 0])))
    assert not token_forces(
        GridLoss(topology="topk_forward_kl", anchor_size=2), REFERENCE.log(), REFERENCE, 3, 0.0
    ).any()
    second = torch.tensor([[False, True, False, False]])
    assert partition_kl(REFERENCE.log()[None], POLICY.log()[None], second, bucket=False).item() < 0


@pytest.mark.parametrize(
    ("settings", "gradient", "pull"),
    [
        # λ·(e_y − π)·r·|A| = (−.21, −.315, −.105, .63), of which the pull takes β·∂r_anchor:
        # r_anchor·(q_S − π), q_S − π = (.2, .3, −.1, −.4); Q* − π = (.4667, .0333, −.1, −.4)
        ({}, (-0.67 / 3, -0.335, -0.295 / 3, 1.97 / 3), 0.1 / 3),
        ({"force": "push_only"}, (-0.21, -0.315, -0.105, 0.63), 0.0),
        ({"force": "pull_only"}, (-0.04 / 3, -0.02, 0.02 / 3, 0.08 / 3), 0.1 / 3),
        ({"weights": "log_mass"}, (-0.23, -0.345, -0.095, 0.67), 0.05),
        ({"weights": "cross_entropy"}, (-0.77 / 3, -0.955 / 3, -0.095, 0.67), 0.05),
    ],
)
def test_a_ratio_whose_gradient_is_another_keeps_apos_value(settings, gradient, pull):
    value, found, metrics = on_token(GridLoss(anchor_size=2, **settings))
    assert value == pytest.approx(1.05 - 0.1 * 2 / 3)
    assert (metrics["apo/anchor_ratio"], metrics["apo/pull"]) == pytest.approx((2 / 3, pull))  # β·slope·(1 − Σ_S π)
    near(found, gradient)


def test_the_sampled_token_is_no_anchor():
    """y = 0: S = {1}, r_anchor = .3/.25, ρ = 1.05 − .12."""
    value, _, metrics = on_token(GridLoss(anchor_size=2), y=0)
    assert (value, metrics["apo/anchor_ratio"]) == pytest.approx((0.93, 1.2))


@pytest.mark.parametrize(
    ("weights", "r_anchor", "gradient"),
    [
        # (.2/.5 + .3/.25)/2;   ½·(π/π_ref on S) − .8·π
        ("uniform", 0.8, (0.04, 0.36, -0.08, -0.32)),
        # √(.4·1.2);   r·(½ on S − π)
        ("geometric", 0.692820, (0.2078, 0.1386, -0.0693, -0.2771)),
    ],
)
def test_the_weights_by_hand(weights, r_anchor, gradient):
    _, slope, metrics = on_token(GridLoss(weights=weights, anchor_size=2, force="pull_only", pull_coef=0.2))
    assert metrics["apo/anchor_ratio"] == pytest.approx(r_anchor, abs=1e-6)
    near(slope, [-0.2 * d for d in gradient], 2e-5)  # the loss is ρ = λ − β·r_anchor
    assert on_token(GridLoss(weights=weights, anchor_size=2), reference=POLICY)[0] == pytest.approx(0.95)


@given(st.integers(0, 10**6), st.sampled_from(["mass", "uniform", "geometric"]))
def test_push_and_pull_add_up(seed, weights):
    probs, ref, y = random_states(8, 6, seeded(seed))
    advantages = torch.tensor([-1.0, -0.5, 0.0, 1.0]).double().repeat(2)
    state = (probs.log(), ref, y, advantages, None, ref.log())
    settings = {"weights": weights, "anchor_size": 3, "trigger": "always"}
    whole, push, pull = (
        token_forces(GridLoss(force=force, **settings), *state) for force in ("both", "push_only", "pull_only")
    )
    near(push + pull, whole)
    if weights == "mass":
        near(whole, token_forces(APO(anchor_size=3, trigger="always"), *state))


def test_without_a_pull_the_gate_still_shuts():
    """π on {0, 1} is .5, π_ref .15: r_anchor = 3.3 > 2.5, and β = 0 would not notice."""
    assert not on_token(GridLoss(force="push_only", anchor_size=3), reference=SURE)[1].any()
    assert on_token(GridLoss(anchor_size=3, pull_coef=0.0), reference=SURE)[1].any()


TRIGGERS = ("negative_advantage", "incorrect", "always")
DIVERGENCES = ("kl", "topk_kl", "topk_forward_kl", "support_mass", "support_ratio_aux")
EXACT_KL = {"topology": "kl", "push_coef": 1.0, "pull_coef": 0.01}
CELLS = [
    *((GridLoss(topology="none", push_coef=1.0, trigger=trigger), GRPO()) for trigger in TRIGGERS),
    *((GridLoss(topology="none", trigger=trigger), APO(pull_coef=0.0, trigger=trigger)) for trigger in TRIGGERS),
    *((GridLoss(trigger=trigger), APO(trigger=trigger)) for trigger in TRIGGERS),
    *((GridLoss(pull_coef=0.0, topology=topology), APO(pull_coef=0.0)) for topology in ("ratio", *DIVERGENCES)),
    (GridLoss(anchor_source="reference_top_p", top_p=1), APO()),
    (GridLoss(**EXACT_KL, trigger="always"), GRPOKL(kl_estimator="full")),
    (GridLoss(**EXACT_KL), GRPOKL(kl_estimator="full", error_only=True)),
]


@pytest.mark.parametrize("kind", ["plain", "far", "confident", "weighted"])
@pytest.mark.parametrize(("cell", "known"), CELLS)
def test_a_cell_that_is_a_known_algorithm_equals_it_to_the_bit(cell, known, kind):
    case = make_case(kind)
    (value, gradient, _), (known_value, known_gradient, _) = (value_and_gradient(x, case) for x in (cell, known))
    assert torch.equal(value, known_value)
    assert torch.equal(gradient, known_gradient)
    assert cell.needs.gradient_on == known.needs.gradient_on


@pytest.mark.parametrize(
    ("algo", "cell"),
    [
        ("grid", GridLoss()),
        ("apo_gate_only", GridLoss(force="push_only")),
        ("apo_log_mass", GridLoss(weights="log_mass")),
        ("apo_cross_entropy", GridLoss(weights="cross_entropy")),
        ("apo_random_anchors", GridLoss(anchor_source="random", pool_size=64)),
        ("apo_ungated", GridLoss(**OUTSIDE)),
        ("grpo_topk_forward_kl", GridLoss(topology="topk_forward_kl", push_coef=1.0)),
        (
            "grpo_entrance_kl",
            GridLoss(
                topology="topk_forward_kl",
                trigger="always",
                anchor_size=16,
                push_coef=1.0,
                pull_coef=0.15,
                first_tokens=1,
            ),
        ),
    ],
)
def test_the_named_algorithms_are_cells(algo, cell):
    assert configured_loss(algo) == cell


@pytest.mark.parametrize("kind", ["plain", "weighted"])
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_outside_the_clip_the_pull_is_apos_where_that_is_open_and_goes_on_where_it_is_shut(kind, trigger):
    case = make_case(kind, num_tokens=96)
    _, gated, output = value_and_gradient(APO(trigger=trigger), case, torch.float64)
    _, ungated, beside = value_and_gradient(GridLoss(**OUTSIDE, trigger=trigger), case, torch.float64)
    triggered = output.metrics["apo/triggered_fraction"] == 1
    # The push's own clip may be shut where APO's is open: A > 0 and r > 1 + ε, whatever the pull.
    is_open = ~triggered | ((output.metrics["clip_fraction"] == 0) & (beside.metrics["clip_fraction"] == 0))
    near(ungated[is_open], gated[is_open])
    shut = triggered & (output.metrics["clip_fraction"] == 1) & (beside.metrics["apo/anchor_ratio"] > 0)
    assert shut.any()
    assert (gated[shut] == 0).all()
    assert (ungated[shut] != 0).any(1).all()


def test_the_forward_kl_everywhere_is_the_expected_k3_on_policy():
    """Σ_y π(y)·∇k3(y) = ∇KL(π_ref‖π)."""
    probs, ref, _ = random_states(1, 5, seeded(3))
    expected = token_forces(
        GridLoss(topology="topk_forward_kl", trigger="always", anchor_size=5, pull_coef=1.0), probs.log(), ref, 0, 0.0
    )
    k3 = GRPOKL(kl_coef=1.0, kl_clamp=None)
    sampled = sum(probs[:, y, None] * token_forces(k3, probs.log(), ref, y, 0.0) for y in range(5))
    near(sampled, expected)


def test_distillation_and_the_support_loss_are_the_sums_that_they_are_called():
    drop = penalty("topk_forward_kl", tail="drop", push_coef=1.0)[0]
    assert drop == pytest.approx((REFERENCE * (REFERENCE / POLICY).log())[:2].sum().item(), abs=1e-12)
    for y in (0, 3):
        loss = GridLoss(
            topology="support_mass", exclude_sampled=False, trigger="always", anchor_size=2, pull_coef=1.0, push_coef=1
        )
        value, gradient, _ = on_token(loss, y=y, advantage=0.0)
        assert value == pytest.approx(0.5)
        near(gradient, (-0.1, -0.15, 0.05, 0.2))


@pytest.mark.parametrize("topology", DIVERGENCES)
def test_at_first_tokens_a_divergence_acts_and_behind_them_nothing_does(topology):
    case = make_case("plain")
    settings = {"topology": topology, "trigger": "always", "push_coef": 1.0}
    everywhere, early, nowhere = (
        value_and_gradient(loss, case) for loss in (GridLoss(**settings), GridLoss(**settings, first_tokens=2), GRPO())
    )
    is_early = torch.arange(len(case.token_ids)) % 4 < 2  # its completions have four tokens
    for found, held, free in zip(early[:2], everywhere[:2], nowhere[:2], strict=True):
        assert torch.equal(found[is_early], held[is_early])
        assert torch.equal(found[~is_early], free[~is_early])
    divergence = early[2].metrics["grid/divergence"]
    assert torch.equal(divergence.isnan(), ~is_early)


def test_correct_answers_pull_too_where_asked():
    """A > 0: ρ = r + β·r_anchor, so that the loss falls by more, and the anchors rise."""
    value, gradient, _ = on_token(GridLoss(anchor_size=2, trigger="always"), advantage=1.0)
    alone_value, alone, _ = on_token(GridLoss(anchor_size=2), advantage=1.0)
    assert value == pytest.approx(alone_value - 0.1 * 2 / 3)
    assert ((gradient - alone)[:2] < 0).all()
    assert ((gradient - alone)[2:] > 0).all()


def test_when_the_reference_is_the_sampling_policy_nothing_is_saturated_and_the_pull_is_that_of_log_mass():
    """Refreshed at every step: r_anchor = 1, and the pull is β|A|·∇log Σ_S π."""
    probs, _, y = random_states(200, 6, seeded(8))
    apo, log_mass = (
        token_forces(GridLoss(weights=w, anchor_size=3), probs.log(), probs, y) for w in ("mass", "log_mass")
    )
    near(apo, log_mass)
    assert (apo != 0).any(1).all()


def test_over_the_whole_vocabulary_the_exclusive_pull_is_a_push():
    """∂ρ = (λ/π_old(y) + β/(1 − π_ref(y)))·∂π(y); with y among them r_anchor = 1, and only ρ is shifted."""
    probs, ref, y = random_states(50, 5, seeded(4))
    is_y = torch.nn.functional.one_hot(y, 5)
    at_y, ref_at_y = probs.gather(1, y[:, None]), ref.gather(1, y[:, None])
    free = {"anchor_size": 5, "clip_eps": 0.999, "pull_coef": 0.01}
    force = token_forces(GridLoss(**free), probs.log(), ref, y)
    near(force, -(1.05 / at_y + 0.01 / (1 - ref_at_y)) * at_y * (is_y - probs))
    naive = token_forces(GridLoss(**free, exclude_sampled=False), probs.log(), ref, y)
    near(naive, token_forces(GridLoss(topology="none", clip_eps=0.999), probs.log(), ref, y))
    assert on_token(GridLoss(anchor_size=4, exclude_sampled=False))[0] == pytest.approx(1.05 - 0.1)


@pytest.mark.parametrize("weights", ["mass", "uniform", "geometric", "log_mass", "cross_entropy"])
def test_without_an_anchor_nothing_pulls(weights):
    """K = 1, and y is the reference's favourite."""
    value, gradient, metrics = on_token(GridLoss(anchor_size=1, weights=weights), y=0)
    assert (value, metrics["apo/anchor_ratio"]) == (pytest.approx(1.05), 0.0)
    near(gradient, 1.05 * (dist(1, 0, 0, 0) - POLICY))


def test_a_token_of_reference_probability_zero_is_no_member():
    narrow = dist(0.75, 0.25, 0.0, 0.0)
    value, _, metrics = on_token(GridLoss(anchor_size=4), reference=narrow)
    assert (value, metrics["apo/anchor_ratio"]) == pytest.approx((1.0, 0.5))
    assert penalty("support_mass", anchor_size=4)[0] == pytest.approx(1 - 0.6)
    loss = GridLoss(topology="support_mass", trigger="always", anchor_size=4, pull_coef=1.0)
    assert on_token(loss, advantage=0.0, reference=narrow)[0] == pytest.approx(1 - 0.5)


@pytest.mark.parametrize("topology", ["ratio", *DIVERGENCES])
def test_only_triggered_tokens_read_the_reference_and_where_nothing_is_learnt_a_divergence_moves_the_policy(topology):
    moves = on_token(GridLoss(topology=topology, trigger="always", anchor_size=2), advantage=0.0)[1].any()
    assert moves or topology == "ratio"
    needs = [GridLoss(topology=topology, trigger=trigger).needs for trigger in TRIGGERS]
    everywhere = "all" if topology != "ratio" else "nonzero_advantage"
    assert [x.reference_on for x in needs] == ["negative_advantage", "incorrect", everywhere]
    assert [x.gradient_on for x in needs] == ["nonzero_advantage", "nonzero_advantage", everywhere]


@given(st.integers(0, 10**6), st.booleans(), st.floats(0.1, 4))
def test_with_a_bucket_a_divergence_is_one(seed, forward, spread):
    """≥ 0; 0 at π = π_ref; at most the full one, which it is at K = V; rising with K."""
    generator = seeded(seed)
    p, q = ((spread * torch.randn(6, generator=generator, dtype=torch.float64)).softmax(0) for _ in range(2))
    assume(min(p.min(), q.min()) > 1e-4)  # where the floor of the bucket does not act
    order = q.argsort(descending=True)
    pair = (q, p) if forward else (p, q)

    def over(first, second, size):
        members = torch.ones(1, size, dtype=torch.bool)
        return partition_kl(first[order[:size]].log()[None], second[order[:size]].log()[None], members).item()

    full = (pair[0] * (pair[0] / pair[1]).log()).sum().item()
    found = [over(*pair, size) for size in range(1, 7)]
    # 1 − J cancels all but 12 of its digits where it is 1e-4.
    assert found[0] >= -1e-10
    assert max(less - more for less, more in itertools.pairwise(found)) < 1e-10
    assert found[-1] == pytest.approx(full, abs=1e-12)
    assert all(abs(over(q, q, size)) < 1e-12 for size in range(1, 7))


def test_the_likeliest_anchors_are_a_prefix():
    """K = 2: .5 + .25 ≥ .7 takes both, .5 ≥ .4 the first; y = 0 then leaves none."""
    sources = [GridLoss(anchor_size=2, anchor_source="reference_top_p", top_p=p) for p in (0.7, 0.4, 0.9)]
    found = [(loss.anchors(inputs_of(loss)[0]).token_ids >= 0).tolist() for loss in sources]
    assert found == [[[True, True]], [[True, False]], [[True, True]]]
    assert on_token(sources[1], y=0)[2]["apo/anchor_ratio"] == 0.0


def test_random_anchors_are_never_the_sampled_token_and_know_no_rank():
    num_tokens, pool, size = 4000, 10, 3
    generator = torch.Generator().manual_seed(0)
    ids = torch.rand(num_tokens, pool, generator=generator).argsort(dim=1)
    y = torch.randint(pool, (num_tokens,), generator=generator)
    flat, zeros = torch.full((num_tokens, pool), 1.0 / pool).log(), torch.zeros(num_tokens)
    inputs = LossInputs(
        token_ids=y,
        sequence_ids=torch.zeros_like(y),
        logprobs=zeros,
        old_logprobs=zeros,
        advantages=zeros - 1,
        is_correct=zeros.bool(),
        anchor=Anchor(token_ids=ids, ref_logprobs=flat, logprobs=flat),
    )
    loss = GridLoss(anchor_source="random", anchor_size=size, pool_size=pool)
    assert (loss.needs.anchor_size, loss.support_size) == (pool, size)
    taken = loss.anchors(inputs).token_ids
    assert ((taken >= 0).sum(1) == size).all()
    assert (taken != y[:, None]).all()
    # Four standard errors of a share of .3 in 4000 draws.
    by_rank = (taken >= 0).double().mean(0)
    assert (by_rank - size / pool).abs().max() < 4 * (0.3 * 0.7 / num_tokens) ** 0.5
    assert torch.equal(loss.anchors(inputs).token_ids, taken)


@pytest.mark.parametrize("topology", ["none", "ratio", *DIVERGENCES])
def test_every_cell_logs_what_it_reads_and_without_a_coefficient_the_reference_is_not_run(topology):
    without = GridLoss(topology=topology, pull_coef=0.1 if topology == "none" else 0, trigger="always")
    assert (without.needs, without.support_size) == (GRPO().needs, 0)
    metrics = on_token(GridLoss(topology=topology, anchor_size=2))[2]
    assert metrics["apo/triggered_fraction"] == 1.0
    assert metrics["apo/saturated_fraction"] == 0.0
    assert ("grid/divergence" in metrics) == (topology in DIVERGENCES)
    if topology not in ("none", "kl"):
        assert (metrics["apo/anchor_ratio"], metrics["apo/ref_anchor_mass"]) == pytest.approx((2 / 3, 0.75))
    assert (GridLoss(topology=topology).saturated_above < float("inf")) == (topology == "ratio")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topology": "forward_kl"}, "choose one of .*topk_forward_kl.*; the forward KL is not computed"),
        ({"topology": "ratio", "scale": "abs_advantage"}, "scale is 'abs_advantage': ratio reads no such setting"),
        ({"topology": "kl", "anchor_source": "random"}, "anchor_source is 'random': kl reads no such setting"),
        ({"topology": "topk_kl", "exclude_sampled": False}, "exclude_sampled is False: topk_kl reads no such"),
        ({"topology": "support_mass", "weights": "uniform"}, "weights is 'uniform': support_mass reads"),
        ({"topology": "support_ratio_aux", "force": "pull_only"}, "force is 'pull_only': support_ratio_aux reads"),
        ({"topology": "support_mass", "tail": "drop"}, "tail is 'drop': support_mass reads"),
        ({"first_tokens": 1}, "first_tokens is 1: ratio reads no such setting"),
        (
            {"topology": "kl", "first_tokens": 0},
            "first_tokens is 0: give a number of at least 1, or null",
        ),
        ({"anchor_source": "policy"}, "choose one of reference, .*; the reference is asked at its own top K alone"),
        ({"anchor_source": "other_position"}, "the reference is asked at its own top K alone"),
        ({"weights": "softmax"}, "weights is 'softmax': choose one of mass, uniform"),
        ({"scale": "A"}, "scale is 'A': choose one of unit, abs_advantage"),
        ({"tail": "keep"}, "tail is 'keep': choose one of bucket, drop"),
        ({"force": "push"}, "force is 'push': choose one of both, push_only, pull_only"),
        ({"anchor_source": "random", "pool_size": 4}, "pool_size is 4: give at least anchor_size, 8"),
        ({"top_p": 0}, "top_p is 0: give a number above 0 and at most 1"),
        ({"topology": "kl", "pull_coef": -1.0}, "pull_coef is -1.0"),
        ({"topology": "topk_kl", "anchor_size": 0}, "anchor_size is 0"),
        ({"pull_coef": 0.3}, "push_coef - pull_coef is 0.75"),
        ({"trigger": "always", "pull_coef": 0.2}, "pull_coef is 0.2, not below the upper clip"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        GridLoss(**settings)
    # Outside of the ratio the clip bounds no coefficient.
    assert GridLoss(topology="topk_kl", pull_coef=5.0, trigger="always").pull_coef == 5.0
