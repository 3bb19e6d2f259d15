"""The pull: its direction, its shape, where it holds on and where it ends."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.losses import GateOnlyAPO
from apo_lab.theory import closed_forms as form
from apo_lab.theory.draws import cosine, dist, pull_alone, random_probs, random_tokens, seeded
from apo_lab.theory.expectations import expected_force, sampled_force
from apo_lab.theory.flow import flow, step
from apo_lab.theory.forces import log_growth, token_force, token_forces
from apo_lab.theory.problems import bandit
from apo_lab.theory.statements.record import Reading, Statement, Verdict
from apo_lightning.advantages import GroupNormalized, SignedReward
from apo_lightning.losses import APO, GRPO, PolicyLoss

GROUP = GroupNormalized()


def gradient_alignment() -> Sequence[Reading]:
    """The pull against the gradients of Π_S and of Π over T_K."""
    generator = seeded(31)
    worst, over_top_k, falls, tried = 1.0, [], 0, 0
    loss = APO(anchor_size=3)
    probs, ref = random_probs(300, 6, generator, 1.5), random_probs(300, 6, generator, 1.5)
    y = random_tokens(probs, generator)
    members, top_k = form.anchors(ref, y, 3), form.anchors(ref, y, 3, naive=True)
    minus = -torch.ones(300, dtype=torch.float64)
    pulls = token_forces(loss, probs.log(), ref, y, minus) - token_forces(
        replace(loss, pull_coef=0.0), probs.log(), ref, y, minus
    )
    for row in range(300):
        if loss.pull_coef * form.anchor_ratio(probs, ref, members)[row] > 0.25:
            continue
        p, pull, inside = probs[row], pulls[row], members[row].double()
        mass, all_mass = (p * inside).sum(), (p * top_k[row]).sum()
        worst = min(worst, cosine(pull, p * (inside - mass)))
        over_top_k.append(cosine(pull, p * (top_k[row].double() - all_mass)))
        falls += (step(p.log(), pull, 500.0).softmax(0) * inside).sum() < mass - 1e-12
        tried += 1
    example, weights = dist(0.6, 0.2, 0.05, 0.05, 0.05, 0.05), dist(0.5, 0.3, 0.05, 0.05, 0.05, 0.05)
    two = APO(anchor_size=2)
    pull = pull_alone(two, example, weights, 0)
    seen = cosine(pull, example * (dist(1, 1, 0, 0, 0, 0) - 0.8))
    after = step(example.log(), pull / two.pull_coef, 0.1).softmax(0)[:2].sum().item()
    return [
        Reading(what=f"cos(pull, ∇Π_S), worst of {tried}", measured=worst, predicted=1.0),
        Reading(what="falls of Π_S in a pull step of η = 500", measured=float(falls), predicted=0.0),
        Reading(what="cos(pull, ∇Π over T_K): worst", measured=min(over_top_k), predicted=0.0, relation="<"),
        Reading(what="counter-example: cos", measured=seen, predicted=-0.21, tolerance=5e-3),
        Reading(what="counter-example: Π over T_K, .8000 before", measured=after, predicted=0.7980, tolerance=5e-5),
        Reading(what="256 tokens: cos of the summed forces", measured=_batch_cosine(), predicted=0.99, relation="<"),
    ]


def _batch_cosine() -> float:
    """Of the pulls of a batch as one vector, tokens of several confidences of the reference, with ∇Σ Π_S."""
    generator = seeded(32)
    ref, loss = random_probs(256, 16, generator, 3.0), APO(anchor_size=8)
    probs = (ref.log() + 0.3 * torch.randn(ref.shape, generator=generator, dtype=torch.float64)).softmax(1)
    y = torch.multinomial(probs, 1, generator=generator)[:, 0]
    size = torch.randn(256, generator=generator, dtype=torch.float64).abs()
    pull = token_forces(loss, probs.log(), ref, y, -size) - token_forces(
        replace(loss, pull_coef=0.0), probs.log(), ref, y, -size
    )
    members = form.anchors(ref, y, 8)
    open_gate = loss.pull_coef * form.anchor_ratio(probs, ref, members) <= 0.25
    mass = (probs * members).sum(1, keepdim=True)
    target = probs * (members.double() - mass)
    return cosine(pull[open_gate].flatten(), target[open_gate].flatten())


def target_consistency() -> Sequence[Reading]:
    """The pull against Q* − π."""
    generator, loss = seeded(33), APO(anchor_size=4)
    ref = random_probs(1, 6, generator, 1.0)[0]
    inside = form.anchors(ref[None], torch.tensor([0]), 4)[0].double()
    target = ref * inside / (ref * inside).sum()
    # The reference's shape on S, any mass.
    probs = (0.4 * target + 0.6 * (1 - inside) / (1 - inside).sum()).clamp(min=1e-9)
    r_a = form.anchor_ratio(probs[None], ref[None], inside[None].bool()).item()
    same = pull_alone(loss, probs, ref, 0) - loss.pull_coef * r_a * (target - probs)
    policy, reference = dist(0.30, 0.30, 0.02, 0.36, 0.02), dist(0.30, 0.05, 0.55, 0.05, 0.05)
    three = APO(anchor_size=3)
    r_a = 0.32 / 0.6
    shape = pull_alone(three, policy, reference, 0) / (three.pull_coef * r_a)
    wanted = dist(0, 0.05, 0.55, 0, 0) / 0.6 - policy
    return [
        Reading(what="π(·|S) = ref(·|S): pull against βr_a(Q* − π)", measured=same.abs().max().item(), predicted=0.0),
        Reading(what="counter-example: (q_S − π)_1", measured=shape[1].item(), predicted=0.64, tolerance=5e-3),
        Reading(what="counter-example: (Q* − π)_1", measured=wanted[1].item(), predicted=-0.22, tolerance=5e-3),
        Reading(what="counter-example: cos(pull, Q* − π)", measured=cosine(shape, wanted), predicted=0.5, relation="<"),
        Reading(
            what="cos(pull, Q* − π), worst of 1000 states", measured=_worst_target_cosine(), predicted=0.0, relation="<"
        ),
    ]


def _worst_target_cosine() -> float:
    """Over random policies beside random references, by the pull of the shipped loss."""
    generator, loss = seeded(36), APO(anchor_size=3, pull_coef=0.01)
    probs, ref = random_probs(1000, 5, generator), random_probs(1000, 5, generator)
    y, minus = random_tokens(probs, generator), -torch.ones(1000, dtype=torch.float64)
    pull = token_forces(loss, probs.log(), ref, y, minus) - token_forces(
        replace(loss, pull_coef=0.0), probs.log(), ref, y, minus
    )
    target = form.within(ref, form.anchors(ref, y, 3)) - probs
    cosines = torch.cosine_similarity(pull, target, dim=1)
    return cosines[pull.abs().amax(1) > 1e-12].min().item()


def structure_preservation() -> Sequence[Reading]:
    """Ratios within S, the natural gradient, and an outside token of the same probability."""
    loss, ref = APO(anchor_size=4), dist(0.4, 0.3, 0.2, 0.05, 0.03, 0.02)
    probs = dist(0.5, 0.2, 0.05, 0.05, 0.15, 0.05)
    pull = pull_alone(loss, probs, ref, 0)
    growth, mass, r_a = log_growth(probs, pull), 0.3, 0.3 / 0.55
    predicted = loss.pull_coef * r_a * (0.2 - 0.05) * (1 / mass - 1)
    fisher = torch.diag(probs) - probs[:, None] * probs
    natural = torch.linalg.lstsq(fisher, pull[:, None], driver="gelsd").solution[:, 0]
    rare = dist(0.5, 0.2, 1e-7, 0.05, 0.25 - 2e-7, 1e-7)
    alike = log_growth(rare, pull_alone(loss, rare, ref, 0))
    return [
        Reading(what="ℓ_i − ℓ_j", measured=(growth[1] - growth[2]).item(), predicted=predicted),
        Reading(
            what="natural gradient: Δz_i − Δz_j within S",
            measured=(natural[1] - natural[2]).item(),
            predicted=0.0,
            tolerance=1e-10,
        ),
        Reading(
            what="rare anchor's growth less rare junk's, π = 1e-7",
            measured=(alike[2] - alike[5]).item(),
            predicted=0.0,
            tolerance=1e-6,
        ),
        Reading(what="the growth of either", measured=alike[5].item(), predicted=-0.01, relation=">"),
    ]


def _expected_pull(probs: Float[Tensor, "vocab"], ref: Float[Tensor, "vocab"], quality: Tensor, size: int) -> Tensor:
    """E of the pull, all errors at A = −1: the difference of two losses under signed rewards, not divided by u."""
    loss, problem = APO(anchor_size=size), bandit(ref, quality)
    both = [
        expected_force(problem, probs.log()[None], x, SignedReward(positive_weight=1.0, negative_weight=1.0))[0]
        for x in (loss, replace(loss, pull_coef=0.0))
    ]
    return both[0] - both[1]


def persistence() -> Sequence[Reading]:
    """What the expected pull on a valid anchor goes to zero with."""
    ref, quality = dist(0.3, 0.3, 0.2, 0.1, 0.1), dist(0, 1, 1, 0, 0)

    def on(probs: Tensor) -> float:
        return _expected_pull(probs, ref, quality, 3)[2].item()

    errors = on(dist(0.4, 0.3, 0.1, 0.1, 0.1)), on(dist(0.04, 0.86, 0.1 - 2e-9, 1e-9, 1e-9))
    rare = [on(dist(0.5, 0.3 - k, k, 0.1, 0.1)) / k for k in (1e-3, 1e-6)]
    inside, rest = dist(0.98, 0.009, 0.009, 0.001, 0.001), dist(0.5, 0.3, 0.1, 0.05, 0.05)
    collapsed = APO(anchor_size=3)
    leak = pull_alone(collapsed, inside.roll(1), rest, 0)[2].item()
    r_a = (0.98 + 0.009) / 0.4
    return [
        Reading(what="pull on k: P(error) .6 against .04", measured=errors[1] / errors[0], predicted=0.2, relation="<"),
        Reading(
            what="pull on k over π_k, 1e-3 against 1e-6", measured=rare[1] / rare[0], predicted=1.0, tolerance=0.01
        ),
        Reading(
            what="collapsed inside T_K: pull on k",
            measured=leak,
            predicted=0.1 * r_a * 0.009 * (1 / 0.989 - 1),
            tolerance=1e-9,
        ),
        Reading(what="all-wrong group: largest force", measured=_all_wrong(), predicted=0.0, tolerance=0.0),
    ]


def _all_wrong() -> float:
    probs = dist(0.7, 0.1, 0.1, 0.1)
    problem = bandit(probs, torch.zeros(4, dtype=torch.float64))
    return sampled_force(problem, probs.log()[None, None], APO(anchor_size=3), GROUP, 8, seeded(34)).abs().max().item()


def settle(start: Float[Tensor, "vocab"], ref: Tensor, quality: Tensor, loss: PolicyLoss) -> Float[Tensor, "vocab"]:
    """Where the exact force of an infinite group leads: 40 steps of η = 1, 40 of 0.2, and the mean of 40 of 0.05.

    Where a gate opens and shuts in turn, a single step would tell of the last swing.
    """
    problem, z, kept = bandit(ref, quality), start.log()[None], []
    for eta, count in ((1.0, 40), (0.2, 40), (0.05, 40)):
        kept = []
        for _ in range(count):
            z = step(z, expected_force(problem, z, loss, GROUP), eta)
            kept.append(z.softmax(1)[0])
    return torch.stack(kept).mean(0)


def elastic_recovery() -> Sequence[Reading]:
    """Rest points on shared prefixes of equal quality, and reward against the pull."""
    free, ref = APO(anchor_size=4, clip_eps=0.999), dist(0.4, 0.3, 0.2, 0.1)
    half = torch.full((4,), 0.5, dtype=torch.float64)
    problem = bandit(ref, half)
    z = flow(
        torch.zeros(1, 4, dtype=torch.float64),
        lambda z: expected_force(problem, z, free, GROUP),
        3000.0,
        stride=0.2,
        growth=0.2,
    )
    rest = z.softmax(1)[0]
    readings = [
        Reading(
            what=f"T_K = V, no clip: π_{v}", measured=rest[v].item(), predicted=(1 - ref[v].item()) / 3, tolerance=1e-5
        )
        for v in (0, 3)
    ]
    loss = APO(anchor_size=2)
    for rare, start in ((0.1, 0.2), (0.03, 0.06), (0.3, 0.695)):
        ref, quality = dist(1 - rare, rare), dist(0.5, 0.5)
        end = settle(dist(1 - start, start), ref, quality, loss)[1].item()
        bound = min(1 - rare, loss.saturated_above * rare)
        readings.append(
            Reading(
                what=f"two branches, ref {1 - rare:g}/{rare:g}: minor one",
                measured=end,
                predicted=bound,
                tolerance=0.02 * bound,
            )
        )
    # Reward wins where ΔQ > βJ(1 − J)/Z_ref: the force on a minor branch of a thousandth, either side of the edge.
    for rare in (0.3, 0.1):
        edge = loss.pull_coef * 0.25 / rare
        for share in (0.85, 1.1):
            problem = bandit(dist(1 - rare, rare), dist(0.5, 0.5 - share * edge))
            growth = log_growth(
                dist(0.999, 0.001), expected_force(problem, dist(0.999, 0.001).log()[None], loss, GROUP)[0]
            )
            grows = float(growth[1] > growth[0])
            name = f"does the minor branch grow, ΔQ = {share:g}·βJ(1 − J)/Z, Z = {rare:g}"
            readings.append(Reading(what=name, measured=grows, predicted=float(share < 1)))
    return [*readings, *_worthless_branch()]


def _worthless_branch() -> Sequence[Reading]:
    """A branch of Q = 0 beside one of Q = .5, reference 1 − Z and Z."""
    readings = []
    loss = APO(anchor_size=2)
    for rare in (0.03, 0.01):
        ref, quality = dist(1 - rare, rare), dist(0.5, 0.0)
        end, cap = settle(ref, ref, quality, loss)[1].item(), loss.saturated_above * rare
        readings.append(
            Reading(what=f"Q = 0 beside .5, Z = {rare:g}: APO", measured=end, predicted=cap, tolerance=0.02 * cap)
        )
    ref, quality = dist(0.97, 0.03), dist(0.5, 0.0)
    for name, loss in (
        ("GRPO", GRPO()),
        ("naive", APO(anchor_size=2, exclude_sampled=False)),
        ("gate only", GateOnlyAPO(anchor_size=2)),
    ):
        end = settle(ref, ref, quality, loss)[1].item()
        readings.append(Reading(what=f"the same, Z = 0.03: {name}", measured=end, predicted=0.03, relation="<"))
    return readings


def cancellation() -> Sequence[Reading]:
    """Share of the push on z_y that a naive pull takes back."""
    generator, bound = seeded(35), 1 - 0.8 / 1.05
    probs, ref = random_probs(5000, 6, generator), random_probs(5000, 6, generator)
    y, minus = random_tokens(probs, generator), -torch.ones(5000, dtype=torch.float64)
    naive = APO(anchor_size=3, exclude_sampled=False)
    at_y = y[:, None]
    push = token_forces(replace(naive, pull_coef=0.0), probs.log(), ref, y, minus).gather(1, at_y)
    both = token_forces(naive, probs.log(), ref, y, minus).gather(1, at_y)
    shares = torch.where(both == 0, 0.0, 1 - both / push)
    alone = APO(anchor_size=1, pull_coef=0.2499999, exclude_sampled=False)
    tight = dist(0.5, 0.3, 0.2), dist(0.5, 0.3, 0.2)
    with_pull, without = (token_force(x, *tight, 0)[0] for x in (alone, replace(alone, pull_coef=0.0)))
    wide = APO(anchor_size=1, pull_coef=1.0, clip_eps=0.96, exclude_sampled=False)
    net, pushed = (token_force(x, *tight, 0)[0].item() for x in (wide, replace(wide, pull_coef=0.0)))
    return [
        Reading(what="largest share in 5000 states", measured=shares.max().item(), predicted=bound, relation="<"),
        Reading(
            what="S = {y}, βr_a at the gate: share",
            measured=(1 - with_pull / without).item(),
            predicted=bound,
            tolerance=1e-6,
        ),
        Reading(what="the same with β = 1, ε = .96", measured=1 - net / pushed, predicted=1 / 1.05, tolerance=1e-9),
        Reading(
            what="that share beside 1 − (1 − ε)/λ", measured=1 - net / pushed, predicted=1 - 0.04 / 1.05, relation="<"
        ),
        Reading(what="net force on z_y then", measured=net, predicted=0.0, relation="<"),
    ]


def exclusive_alignment() -> Sequence[Reading]:
    """The exclusive pull on the error itself."""
    probs, ref = dist(0.02, 0.90, 0.05, 0.03), dist(0.5, 0.02, 0.3, 0.18)
    loss = APO(anchor_size=3)
    pull = pull_alone(loss, probs, ref, 0)
    r_a = 0.08 / 0.48
    growth = log_growth(probs, pull)[0].item()
    return [
        Reading(what="pull on z_y against −βr_aπ_y", measured=pull[0].item(), predicted=-loss.pull_coef * r_a * 0.02),
        Reading(what="counter-example: growth of log π_y", measured=growth, predicted=0.0125, tolerance=5e-4),
        Reading(what="its sign", measured=growth, predicted=0.0, relation=">"),
    ]


def push_and_pull() -> Sequence[Reading]:
    """At π = π_ref, what push and pull do to z_y."""
    loss, readings = APO(anchor_size=2), []
    edge = loss.push_coef / (loss.push_coef + loss.pull_coef)
    for share, push, pull in ((0.5, 0.525, 0.05), (0.9, 0.105, 0.09), (0.99, 0.0105, 0.099)):
        probs = dist(share, 1 - share)
        pushed = -token_force(replace(loss, pull_coef=0.0), probs, probs, 0)[0].item()
        pulled = -pull_alone(loss, probs, probs, 0)[0].item()
        readings += [
            Reading(what=f"push on z_y, π_y = {share:g}", measured=pushed, predicted=push, tolerance=1e-9),
            Reading(what=f"pull on z_y, π_y = {share:g}", measured=pulled, predicted=pull, tolerance=1e-9),
        ]
    for share in (edge - 1e-3, edge + 1e-3):
        probs = dist(share, 1 - share)
        pushed = -token_force(replace(loss, pull_coef=0.0), probs, probs, 0)[0].item()
        larger = float(-pull_alone(loss, probs, probs, 0)[0].item() > pushed)
        readings.append(
            Reading(what=f"pull exceeds push, π_y = {share:.3f}", measured=larger, predicted=float(share > edge))
        )
    return [*readings, Reading(what="the edge λ/(λ + β)", measured=edge, predicted=0.913, tolerance=5e-4)]


STATEMENTS = (
    Statement(
        key="C12",
        title="Gradient alignment",
        claim="The pull is strictly collinear with the gradient of support coverage.",
        where="appendix B.1, proposition",
        formula="cos(pull, ∇Π_S) = 1 per token, at any step size; not for Π over T_K ∋ y, nor over a batch",
        verdict=Verdict.CONDITIONAL,
        check=gradient_alignment,
    ),
    Statement(
        key="C13",
        title="A corrected target",
        claim="The pull descends towards Q*, the reference within the anchors.",
        where="appendix B.1, consistency",
        formula="pull = βr_a(q_S − π) = βr_a(Q* − π) iff π(·|S) = π_ref(·|S)",
        verdict=Verdict.CONDITIONAL,
        check=target_consistency,
    ),
    Statement(
        key="C14",
        title="Structure-preserving inflation",
        claim="The pull inflates the valid structure proportionally to its shape.",
        where="appendix B.3",
        formula="ℓ_i − ℓ_j = βr_a(π_i − π_j)(1/Π_S − 1): order is kept, ratios widen; the natural gradient keeps them",
        verdict=Verdict.FALSE,
        check=structure_preservation,
    ),
    Statement(
        key="C15",
        title="Persistent recovery",
        claim="The anchor keeps a strong restoring gradient as long as the safe mass is below 1.",
        where="appendix B.3",
        formula="E pull on k ∝ P(error)·π_k·(1 − Π_S): it ends with errors, with π_k, inside T_K, in all-wrong groups",
        verdict=Verdict.FALSE,
        check=persistence,
    ),
    Statement(
        key="C16",
        title="Elastic recovery",
        claim="The anchor brings suppressed branches back.",
        where="section 4, Fig. 5",
        formula="equal Q, T_K = V: rest at (1 − π_ref)/(V − 1) without clip, minor one at min(ref_major, κ·ref_minor) "
        "with it; a worthless branch is held up too",
        verdict=Verdict.CONDITIONAL,
        check=elastic_recovery,
        figure="recovery",
    ),
    Statement(
        key="C17",
        title="Signal cancellation",
        claim="A naive anchor can neutralise or reverse the push on the error.",
        where="appendix C.1",
        formula="share of the push on z_y that is cancelled ≤ 1 − (1 − ε)/(λr): .238 at r = 1",
        verdict=Verdict.CONDITIONAL,
        check=cancellation,
        figure="anchors",
    ),
    Statement(
        key="C18",
        title="Exclusion aligns push and pull",
        claim="Without y among the anchors the pull consistently suppresses the error.",
        where="appendix C.1",
        formula="pull on z_y = −βr_aπ_y < 0; log π_y may still rise where the leader is no anchor",
        verdict=Verdict.CONDITIONAL,
        check=exclusive_alignment,
        figure="anchors",
    ),
    Statement(
        key="P1",
        title="Push against pull",
        claim="The pull is a small correction to the push.",
        where="section 4 (β = 0.1)",
        formula="on z_y the pull exceeds the push iff π_y > λ/(λ + βr_a): .913 at r_a = 1",
        verdict=Verdict.CONDITIONAL,
        check=push_and_pull,
        figure="phases",
    ),
)
