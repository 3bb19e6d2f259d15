"""Statements C12 to C18 and P1: the pull's direction and shape, what it keeps up and where it ends."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.theory import closed_forms as form
from apo_lab.theory.expectations import GROUP, POLICY_GRADIENT, expected_force, sampled_force
from apo_lab.theory.forces import log_growth, pull_forces, token_forces
from apo_lab.theory.problems import bandit, constant, dist, random_probs, random_states, seeded
from apo_lab.theory.statements.statement import Reading, Truth, above, below, equal, statement
from apo_lab.theory.trajectories import flow, inner_steps
from apo_lightning.losses import APO, GRPO, PolicyLoss
from apo_methods.losses import GridLoss


def cosine(one: Float[Tensor, "*tokens vocab"], other: Float[Tensor, "*tokens vocab"]) -> Float[Tensor, "*tokens"]:
    """Cosine of the angle between two forces."""
    return (one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1))


@statement("C12", "Gradient alignment", Truth.CONDITIONAL, where="appendix B.1, proposition")
def gradient_alignment() -> Iterator[Reading]:
    """The pull is strictly collinear with the gradient of support coverage.

    cos(pull, ∇Π_S) = 1 per token, at any step size; not for Π over T_K ∋ y, nor over a batch.
    """
    loss, (probs, ref, y) = APO(anchor_size=3), random_states(300, 6, seeded(31), 1.5)
    members, top_k = form.anchors(ref, y, 3), form.anchors(ref, y, 3, naive=True)
    is_open = loss.pull_coef * form.anchor_ratio(probs, ref, members) <= 0.25
    pulls = pull_forces(loss, probs.log(), ref, y)[is_open]
    probs, members, top_k = probs[is_open], members[is_open], top_k[is_open]
    along_s, along_top_k = (cosine(pulls, form.coverage_gradient(probs, within)) for within in (members, top_k))
    after, mass = (probs.log() + 500.0 * pulls).softmax(1), (probs * members).sum(1)
    yield equal(f"cos(pull, ∇Π_S), worst of {len(pulls)}", along_s.min(), 1.0)
    yield equal("falls of Π_S in a pull step of η = 500", ((after * members).sum(1) < mass - 1e-12).sum())
    yield below("cos(pull, ∇Π over T_K): worst", along_top_k.min(), 0.0)
    example, weights = dist(0.6, 0.2, 0.05, 0.05, 0.05, 0.05), dist(0.5, 0.3, 0.05, 0.05, 0.05, 0.05)
    pull, top_two = pull_forces(APO(anchor_size=2), example.log(), weights, 0), torch.arange(6) < 2
    yield equal("counter-example: cos", cosine(pull, form.coverage_gradient(example, top_two)), -0.21, 5e-3)
    after = (example.log() + 0.1 * (pull / loss.pull_coef)).softmax(0)[:2].sum()
    yield equal("counter-example: Π over T_K, .8000 before", after, 0.7980, 5e-5)
    # A batch, in which the reference is more or less sure of its tokens.
    generator, loss = seeded(32), APO(anchor_size=8)
    ref = random_probs(256, 16, generator, 3.0)
    probs = (ref.log() + 0.3 * torch.randn(ref.shape, generator=generator, dtype=torch.float64)).softmax(1)
    y = torch.multinomial(probs, 1, generator=generator)[:, 0]
    size = torch.randn(256, generator=generator, dtype=torch.float64).abs()
    members = form.anchors(ref, y, 8)
    is_open = loss.pull_coef * form.anchor_ratio(probs, ref, members) <= 0.25
    pull, target = pull_forces(loss, probs.log(), ref, y, -size), form.coverage_gradient(probs, members)
    whole = cosine(pull[is_open].flatten(), target[is_open].flatten())
    yield below("256 tokens: cos of the summed forces", whole, 0.99)


@statement("C13", "A corrected target", Truth.CONDITIONAL, where="appendix B.1, consistency")
def target_consistency() -> Iterator[Reading]:
    """The pull descends towards Q*, the reference within the anchors.

    pull = βr_a(q_S − π) = βr_a(Q* − π) iff π(·|S) = π_ref(·|S).
    """
    loss, ref = APO(anchor_size=4), random_probs(1, 6, seeded(33), 1.0)[0]
    inside = form.anchors(ref[None], torch.tensor([0]), 4)[0].double()
    target = ref * inside / (ref * inside).sum()
    # A policy with the reference's shape on S and another mass.
    probs = (0.4 * target + 0.6 * (1 - inside) / (1 - inside).sum()).clamp(min=1e-9)
    r_a = form.anchor_ratio(probs[None], ref[None], inside[None].bool()).item()
    same = pull_forces(loss, probs.log(), ref, 0) - loss.pull_coef * r_a * (target - probs)
    yield equal("π(·|S) = ref(·|S): pull against βr_a(Q* − π)", same.abs().max())
    policy, reference = dist(0.30, 0.30, 0.02, 0.36, 0.02), dist(0.30, 0.05, 0.55, 0.05, 0.05)
    three = APO(anchor_size=3)
    shape = pull_forces(three, policy.log(), reference, 0) / (three.pull_coef * (0.32 / 0.6))
    wanted = dist(0, 0.05, 0.55, 0, 0) / 0.6 - policy
    yield equal("counter-example: (q_S − π)_1", shape[1], 0.64, 5e-3)
    yield equal("counter-example: (Q* − π)_1", wanted[1], -0.22, 5e-3)
    yield below("counter-example: cos(pull, Q* − π)", cosine(shape, wanted), 0.5)
    weak, (policies, references, y) = APO(anchor_size=3, pull_coef=0.01), random_states(1000, 5, seeded(36))
    pull = pull_forces(weak, policies.log(), references, y)
    targets = form.within(references, form.anchors(references, y, 3)) - policies
    cosines = cosine(pull, targets)[pull.abs().amax(1) > 1e-12]
    yield below("cos(pull, Q* − π), worst of 1000 states", cosines.min(), 0.0)


@statement("C14", "Structure-preserving inflation", Truth.FALSE, where="appendix B.3")
def structure_preservation() -> Iterator[Reading]:
    """The pull inflates the valid structure proportionally to its shape.

    ℓ_i − ℓ_j = βr_a(π_i − π_j)(1/Π_S − 1): order is kept, ratios widen; the natural gradient keeps them.
    """
    loss, ref = APO(anchor_size=4), dist(0.4, 0.3, 0.2, 0.05, 0.03, 0.02)
    probs = dist(0.5, 0.2, 0.05, 0.05, 0.15, 0.05)
    pull = pull_forces(loss, probs.log(), ref, 0)
    growth, mass, r_a = log_growth(probs, pull), 0.3, 0.3 / 0.55
    yield equal("ℓ_i − ℓ_j", growth[1] - growth[2], loss.pull_coef * r_a * (0.2 - 0.05) * (1 / mass - 1))
    fisher = torch.diag(probs) - probs[:, None] * probs
    natural = torch.linalg.lstsq(fisher, pull[:, None], driver="gelsd").solution[:, 0]
    yield equal("natural gradient: Δz_i − Δz_j within S", natural[1] - natural[2], tolerance=1e-10)
    rare = dist(0.5, 0.2, 1e-7, 0.05, 0.25 - 2e-7, 1e-7)
    alike = log_growth(rare, pull_forces(loss, rare.log(), ref, 0))
    yield equal("rare anchor's growth minus rare junk's, π = 1e-7", alike[2] - alike[5], tolerance=1e-6)
    yield above("the growth of either", alike[5], -0.01)


@statement("C15", "Persistent recovery", Truth.FALSE, where="appendix B.3")
def persistence() -> Iterator[Reading]:
    """The anchor keeps a strong restoring gradient as long as the safe mass is below 1.

    E pull on k ∝ P(error)·π_k·(1 − Π_S): it vanishes with the errors, with π_k, inside T_K, in all-wrong groups.
    """
    loss, problem = APO(anchor_size=3), bandit(dist(0.3, 0.3, 0.2, 0.1, 0.1), dist(0, 1, 1, 0, 0))

    def on(probs: Tensor) -> float:
        """The expected pull on token 2 with all errors at A = −1: the difference of two losses."""
        both, push = (
            expected_force(problem, probs.log()[None], x, POLICY_GRADIENT)[0]
            for x in (loss, replace(loss, pull_coef=0.0))
        )
        return (both - push)[2].item()

    many, few = on(dist(0.4, 0.3, 0.1, 0.1, 0.1)), on(dist(0.04, 0.86, 0.1 - 2e-9, 1e-9, 1e-9))
    yield below("pull on k: P(error) .6 against .04", few / many, 0.2)
    rare = [on(dist(0.5, 0.3 - k, k, 0.1, 0.1)) / k for k in (1e-3, 1e-6)]
    yield equal("pull on k over π_k, 1e-3 against 1e-6", rare[1] / rare[0], 1.0, 0.01)
    inside, rest = dist(0.98, 0.009, 0.009, 0.001, 0.001), dist(0.5, 0.3, 0.1, 0.05, 0.05)
    leak = pull_forces(loss, inside.roll(1).log(), rest, 0)[2]
    r_a = (0.98 + 0.009) / 0.4
    yield equal("collapsed inside T_K: pull on k over π_k", leak / 0.009, 0.1 * r_a * (1 / 0.989 - 1), 1e-7)
    probs = dist(0.7, 0.1, 0.1, 0.1)
    errors = sampled_force(bandit(probs, dist(0, 0, 0, 0)), probs.log()[None, None], loss, GROUP, 8, seeded(34))
    yield equal("all-wrong group: largest force", errors.abs().max(), tolerance=0.0)


def settle(start: Float[Tensor, "vocab"], ref: Tensor, quality: Tensor, loss: PolicyLoss) -> Float[Tensor, "vocab"]:
    """Where the exact force of an infinite group leads: 40 steps of η = 1, 40 of 0.2, and the mean of 40 of 0.05.

    The mean, because a gate that opens and shuts in turn makes the last step's value depend on the last swing.
    """
    problem, path = bandit(ref, quality), start.log()[None, None]
    for eta in (1.0, 0.2, 0.05):
        path = inner_steps(path[-1], lambda z: expected_force(problem, z, loss, GROUP), eta, 40)
    return path[1:, 0].softmax(1).mean(0)


@statement("C16", "Elastic recovery", Truth.CONDITIONAL, where="section 4, Fig. 5", figure="recovery")
def elastic_recovery() -> Iterator[Reading]:
    """The anchor brings suppressed branches back.

    equal Q, T_K = V: rest at (1 − π_ref)/(V − 1) without clip, minor one at min(ref_major, κ·ref_minor) with it; a
    worthless branch is kept up too.
    """
    free, ref = APO(anchor_size=4, clip_eps=0.999), dist(0.4, 0.3, 0.2, 0.1)
    problem, start = bandit(ref, constant(0.5, 4)), constant(0.0, 4)[None]
    z = flow(start, lambda z: expected_force(problem, z, free, GROUP), 3000.0, stride=0.2, growth=0.2)
    rest = z.softmax(1)[0]
    for v in (0, 3):
        yield equal(f"T_K = V, no clip: π_{v}", rest[v], (1 - ref[v].item()) / 3, 1e-5)
    loss = APO(anchor_size=2)
    for rare, start in ((0.1, 0.2), (0.03, 0.06), (0.3, 0.695)):
        end = settle(dist(1 - start, start), dist(1 - rare, rare), dist(0.5, 0.5), loss)[1]
        bound = min(1 - rare, loss.saturated_above * rare)
        yield equal(f"two branches, ref {1 - rare:g}/{rare:g}: minor one", end, bound, 0.02 * bound)
    # Reward wins if ΔQ > βJ(1 − J)/Z_ref: the force on a minor branch of a thousandth, on either side of the edge.
    probs = dist(0.999, 0.001)
    for rare in (0.3, 0.1):
        edge = loss.pull_coef * 0.25 / rare
        for share in (0.85, 1.1):
            problem = bandit(dist(1 - rare, rare), dist(0.5, 0.5 - share * edge))
            growth = log_growth(probs, expected_force(problem, probs.log()[None], loss, GROUP)[0])
            name = f"does the minor branch grow, ΔQ = {share:g}·βJ(1 − J)/Z, Z = {rare:g}"
            yield equal(name, float(growth[1] > growth[0]), float(share < 1))
    for rare in (0.03, 0.01):
        ref, cap = dist(1 - rare, rare), loss.saturated_above * rare
        end = settle(ref, ref, dist(0.5, 0.0), loss)[1]
        yield equal(f"Q = 0 and .5, Z = {rare:g}: APO", end, cap, 0.02 * cap)
    ref, naive = dist(0.97, 0.03), APO(anchor_size=2, exclude_sampled=False)
    for name, other in (("GRPO", GRPO()), ("naive", naive), ("gate only", GridLoss(force="push_only", anchor_size=2))):
        yield below(f"the same, Z = 0.03: {name}", settle(ref, ref, dist(0.5, 0.0), other)[1], 0.03)


@statement("C17", "Signal cancellation", Truth.CONDITIONAL, where="appendix C.1")
def cancellation() -> Iterator[Reading]:
    """A naive anchor can neutralise or reverse the push on the error.

    share of the push on z_y that is cancelled ≤ 1 − (1 − ε)/(λr): .238 at r = 1.
    """
    bound, (probs, ref, y) = 1 - 0.8 / 1.05, random_states(5000, 6, seeded(35))
    naive = APO(anchor_size=3, exclude_sampled=False)
    push, both = (
        token_forces(loss, probs.log(), ref, y).gather(1, y[:, None]) for loss in (replace(naive, pull_coef=0.0), naive)
    )
    yield below("largest share in 5000 states", torch.where(both == 0, 0.0, 1 - both / push).max(), bound)
    example = dist(0.5, 0.3, 0.2)
    for name, loss, share in (
        ("S = {y}, βr_a at the gate: share", replace(naive, anchor_size=1, pull_coef=0.2499999), bound),
        ("the same with β = 1, ε = .96", replace(naive, anchor_size=1, pull_coef=1.0, clip_eps=0.96), 1 / 1.05),
    ):
        net, pushed = (token_forces(x, example.log(), example, 0)[0] for x in (loss, replace(loss, pull_coef=0.0)))
        yield equal(name, 1 - net / pushed, share, 1e-6)
    yield below("net force on z_y then", net, 0.0)


@statement("C18", "Exclusion aligns push and pull", Truth.CONDITIONAL, where="appendix C.1")
def exclusive_alignment() -> Iterator[Reading]:
    """Without y among the anchors the pull consistently suppresses the error.

    pull on z_y = −βr_aπ_y < 0; log π_y may still rise where the leader is no anchor.
    """
    probs, ref, loss = dist(0.02, 0.90, 0.05, 0.03), dist(0.5, 0.02, 0.3, 0.18), APO(anchor_size=3)
    pull = pull_forces(loss, probs.log(), ref, 0)
    growth = log_growth(probs, pull)[0]
    yield equal("pull on z_y against −βr_aπ_y", pull[0], -loss.pull_coef * (0.08 / 0.48) * 0.02)
    yield equal("counter-example: growth of log π_y", growth, 0.0125, 5e-4)


@statement("P1", "Push against pull", Truth.CONDITIONAL, where="section 4 (β = 0.1)")
def push_and_pull() -> Iterator[Reading]:
    """At β = 0.1 the pull is a strong restoring force, as we read it.

    on z_y the pull exceeds the push iff π_y > λ/(λ + βr_a): .913 at r_a = 1.
    """
    loss = APO(anchor_size=2)
    edge = loss.push_coef / (loss.push_coef + loss.pull_coef)
    shares = torch.tensor([0.5, 0.9, 0.99, edge - 1e-3, edge + 1e-3], dtype=torch.float64)
    probs = torch.stack([shares, 1 - shares], dim=1)
    pushes = -token_forces(replace(loss, pull_coef=0.0), probs.log(), probs, 0)[:, 0]
    pulls = -pull_forces(loss, probs.log(), probs, 0)[:, 0]
    for index, (share, push, pull) in enumerate(((0.5, 0.525, 0.05), (0.9, 0.105, 0.09), (0.99, 0.0105, 0.099))):
        yield equal(f"push on z_y, π_y = {share:g}", pushes[index], push, 1e-9)
        yield equal(f"pull on z_y, π_y = {share:g}", pulls[index], pull, 1e-9)
    for index in (3, 4):
        exceeds = (pulls > pushes)[index]
        yield equal(f"pull exceeds push, π_y = {shares[index]:.3f}", exceeds, float(shares[index] > edge))
    yield equal("the edge λ/(λ + β)", edge, 0.913, 5e-4)
