"""Statements C7 to C11, C19 and C20: where a force leads; contraction, divergence penalties and the trust region."""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from apo_lab.theory import closed_forms as form
from apo_lab.theory.expectations import GROUP, NSR, POLICY_GRADIENT, expected_force
from apo_lab.theory.forces import log_growth, token_forces
from apo_lab.theory.problems import Tree, bandit, constant, dist, random_probs, seeded
from apo_lab.theory.statements.statement import Reading, Truth, above, below, equal, same, statement
from apo_lab.theory.trajectories import flow, inner_steps, ratios
from apo_lightning.losses import APO, GRPO, GRPOKL, PolicyLoss


def entropy(probs: Tensor) -> float:
    """H [nats]."""
    return -torch.special.xlogy(probs, probs).sum(-1).item()


@statement("C7", "Recursive contraction", Truth.CONDITIONAL, where="section 3.1")
def recursive_contraction() -> Iterator[Reading]:
    """On-policy updates contract the space of solutions, and the anchor undoes it.

    f_i − f_j = B(π_i − π_j), B ≥ 0, for valid i, j in T_K: H(π|valid) never rises, under APO either; PG flow has
    π_wrong ~ 1/t and π_k ~ t^−½.
    """
    generator = seeded(21)
    counts = dict.fromkeys(("PG, η = 1 to 1000", "NSR", "GRPO", "APO"), 0)
    total_rises, spreads = 0, []
    problem = bandit(dist(0.3, 0.3, 0.3, 0.05, 0.03, 0.02), dist(1, 1, 1, 0, 0, 0))
    for _ in range(40):
        probs = random_probs(1, 6, generator)[0]
        logits = probs.log()[None]
        eta = 10 ** (3 * torch.rand(1, generator=generator).item())
        methods = (
            (GRPO(), POLICY_GRADIENT, eta),
            (GRPO(), NSR, 0.01),
            (GRPO(), GROUP, 0.01),
            (APO(anchor_size=4), GROUP, 0.01),
        )
        for name, (loss, advantage, size) in zip(counts, methods, strict=True):
            force = expected_force(problem, logits, loss, advantage)
            after = (logits + size * force).softmax(1)[0]
            before_valid, after_valid = (entropy(p[:3] / p[:3].sum()) for p in (probs, after))
            counts[name] += after_valid > before_valid + 1e-12
            total_rises += name == "GRPO" and entropy(after) > entropy(probs)
            slopes = (force[0, :2] - force[0, 2]) / (probs[:2] - probs[2])
            spreads.append(((slopes[0] - slopes[1]) / slopes[0]).abs().item())
    for name, count in counts.items():
        yield equal(f"rises of H(π|valid) in 40, {name}", count, 0)
    yield equal("f_i − f_j = B(π_i − π_j): relative difference of B", max(spreads), tolerance=1e-8)
    yield above("rises of total H in 40, GRPO", total_rises, 0)
    start = dist(0.5, 0.2, 0.3)
    problem = bandit(start, dist(1, 1, 0))

    def gradient(z: Tensor) -> Tensor:
        return expected_force(problem, z, GRPO(), POLICY_GRADIENT) / 2

    early = flow(start.log()[None], gradient, 1e5, stride=0.05, growth=0.04)
    # `flow` counts time from 0 again, so only the logits' movement bounds its steps here.
    late = flow(early, gradient, 9e5)
    _, rare, wrong = (late.log_softmax(1) - early.log_softmax(1))[0] / math.log(10)
    yield equal("exponent of π_wrong in t, PG flow to 10⁶", wrong, -1.0, 0.01)
    yield equal("exponent of π_k in t", rare, -0.5, 0.01)


@statement("C8", "Recall and elimination", Truth.FALSE, where="table 1")
def recall_says_nothing() -> Iterator[Reading]:
    """A top-1 recall of 83.84 % guarantees that squeezing eliminates 16 % of the paths.

    recall does not determine the force: with all tokens valid it is 0, with a wrong leader the 16 % grow.
    """
    ref = torch.cat([dist(0.8384), constant(0.1616 / 7, 7)])
    moved = expected_force(bandit(ref, constant(1.0, 8)), ref.log()[None], GRPO(), GROUP, 8)
    yield equal("top-1 recall .8384, all valid: largest force", moved.abs().max())
    force = expected_force(bandit(ref, dist(0, 1, 1, 1, 1, 1, 1, 1)), ref.log()[None], GRPO(), GROUP, 8)[0]
    yield above("the same, leader wrong: growth of the 16 %", log_growth(ref, force)[1], 0)


@statement("C9", "Divergence against reward", Truth.CONDITIONAL, where="section 3.3, Fig. 4")
def penalty_against_reward() -> Iterator[Reading]:
    """The KL penalty's gradient conflicts with the reward's.

    ⟨f_KL, f_PG⟩ < 0 along the reward's flow from π_ref, > 0 after a collapse onto an error.
    """
    generator = seeded(22)
    penalty = GRPOKL(kl_coef=1.0, kl_estimator="full")
    opposed, agreed = [], []
    for _ in range(10):
        ref = random_probs(1, 5, generator, 1.0)[0]
        problem, start = bandit(ref, dist(1, 0, 1, 0, 0)), ref.log()[None]

        def force(z: Tensor, problem: Tree = problem) -> Tensor:
            return expected_force(problem, z, GRPO(), POLICY_GRADIENT)

        def product(z: Tensor, force=force, ref: Tensor = ref) -> float:
            kl = token_forces(penalty, z, ref, 0, 0.0)
            return (kl * force(z)).sum().item()

        opposed += [product(flow(start, force, end, stride=0.1)) < 0 for end in (0.2, 2.0)]
        agreed.append(product((ref.log() + dist(0, 12, 0, 0, 0))[None]) > 0)
    yield equal("share opposed along the flow from π_ref", sum(opposed) / len(opposed), 1.0)
    yield equal("share that agrees after collapse onto an error", sum(agreed) / len(agreed), 1.0)


@statement("C10", "KL leaves the trust region", Truth.CONDITIONAL, where="appendix B.4, case 1", figure="trust_region")
def penalty_leaves_trust_region() -> Iterator[Reading]:
    """Where the clip is flat, KL pushes the ratio significantly beyond the window.

    there d log π_y/dt = π_y(D_y + KL) − Σπ²(D + KL), D = log(π_ref/π): outward iff it has the sign of log r.
    """
    old, ref = dist(0.30, 0.50, 0.20), dist(0.05, 0.55, 0.40)
    generator, penalty = seeded(23), GRPOKL(kl_coef=1.0, kl_estimator="full")
    probs, other = random_probs(1, 6, generator, 1.0)[0], random_probs(1, 6, generator, 1.0)[0]
    force = token_forces(penalty, probs.log(), other, 0, 0.0)
    gap = other.log() - probs.log()
    kl = -(probs * gap).sum()
    predicted = probs[0] * (gap[0] + kl) - (probs.square() * (gap + kl)).sum()
    yield equal("rate of log π_y under KL alone", log_growth(probs, force)[0], predicted)
    for coef, end, eta, count, tolerance in ((0.0, 0.794, 0.03, 100, 3e-3), (1.0, 1 / 6, 0.2, 350, 1e-3)):
        at_end = ratios(replace(penalty, kl_coef=coef), old, ref, eta, count)[-1, 0]
        yield equal(f"r at the end, coefficient {coef:g}", at_end, end, tolerance)
    weak = ratios(replace(penalty, kl_coef=0.01), old, ref, 0.2, 150)[-1, 0]
    yield below("r at η·steps = 30, coefficient 0.01", weak, 0.8)
    for coef in (0.01, 1.0):
        at_end = ratios(replace(penalty, kl_coef=coef), old, old, 0.02, 100)[-1, 0]
        yield equal(f"π_old = π_ref: r, coefficient {coef:g}", at_end, 0.795, 0.0055)


@statement("C11", "APO stays in the trust region", Truth.FALSE, where="appendix B.4, case 2", figure="trust_region")
def adherence() -> Iterator[Reading]:
    """It is mathematically impossible for the anchor to push the update into an unstable regime.

    the gate is on ρ: r stops at (1 − ε + βr_a)/λ; anchors' ratios, ρ > 1 + ε, a large step have no cap.
    """
    old, ref = dist(0.5, 0.3, 0.2), dist(0.6, 0.2, 0.2)
    low = ratios(APO(anchor_size=1), old, ref, 0.01, 100)[-1, 0]
    yield equal("r where the gate shuts, empty S", low, (1 - 0.2) / 1.05, 2.5e-3)
    wide = dist(0.90, 0.05, 0.03, 0.02)
    inside = ratios(APO(anchor_size=4), wide, dist(0.4, 0.2, 0.2, 0.2), 0.04, 150)[-1]
    stop = (1 - 0.2 + 0.1 * (wide * inside)[1:].sum().item() / 0.6) / 1.05
    yield equal("r where the gate shuts, S of 3", inside[0], stop, 2.5e-3)
    yield above("largest ratio of an anchor then", inside[1:].max(), 1.2)
    risen, loss = dist(0.9, 0.05, 0.05).log(), APO(anchor_size=2)
    far = token_forces(loss, risen, ref, 0, old_logits=dist(0.3, 0.525, 0.175).log())
    yield above("largest |f| at r = 3", far.abs().max(), 0.1)
    capped = replace(loss, dual_clip=3.0)
    beyond = token_forces(capped, risen, ref, 0, old_logits=dist(0.1, 0.45, 0.45).log())
    yield equal("largest |f| at r = 9, dual clip 3", beyond.abs().max())
    big = (old.log() + 3.0 * token_forces(APO(anchor_size=3), old.log(), ref, 0)).softmax(0) / old
    yield below("one step of η = 3: r", big[0], 0.8)
    yield above("one step of η = 3: largest ratio of an anchor", big[1:].max(), 1.2)
    # A right and a wrong completion share a token, so it is trained with A = +1 and A = −1.
    old, ref = dist(0.05, 0.07, 0.01, 0.87), dist(0.3, 0.5, 0.15, 0.05)

    def after(loss: PolicyLoss) -> Tensor:
        def force(z: Tensor) -> Tensor:
            return token_forces(loss, z.expand(2, -1), ref, 0, dist(1, -1), old_logits=old.log()).mean(0)

        # With steps of 2 the gate's swings would amplify rounding, and readings would depend on the machine.
        return inner_steps(old.log(), force, 0.5, 500).softmax(1)[-1]

    grpo, apo = after(GRPO()), after(APO(anchor_size=3))
    yield equal("A = ±1 on one token, GRPO: largest move", (grpo - old).abs().max())
    yield above("the same, APO: r_a at the end (.12 at the start)", (apo[1] + apo[2]) / 0.65, 0.5)
    likeliest = apo[1] / old[1]
    yield above("the same, APO: likeliest anchor's ratio", likeliest, 2.0)
    yield below("the same, APO: rarest anchor's ratio over that", apo[2] / old[2] / likeliest, 0.8)


@statement("C19", "Sufficiently penalised", Truth.FALSE, where="appendix B.4, clipped region")
def saturation() -> Iterator[Reading]:
    """A zero gradient below 1 − ε confirms that the policy has been penalised enough.

    at r = 1 the gate is shut iff r_a > κ = (λ − (1 − ε))/β, before any penalty.
    """
    loss = APO(anchor_size=2)
    kappa = (loss.push_coef - (1 - loss.clip_eps)) / loss.pull_coef

    for share in (0.99, 1.01):
        z_ref = 0.2 / (kappa * share)
        ref = dist(1 - z_ref - 1e-3, z_ref, 1e-3)
        is_shut = not token_forces(loss, dist(0.79, 0.2, 0.01).log(), ref, 0).any()
        yield equal(f"gate shut at r_a = {share:.2f}·κ", is_shut, float(share > 1))
    yield equal("κ of the loss that trains", loss.saturated_above, kappa)
    probs, sure = dist(0.9, 0.09, 0.01), dist(0.99, 0.009, 0.001)
    apo, grpo = (token_forces(x, probs.log(), sure, 0).abs().max() for x in (loss, GRPO()))
    yield equal("largest force on that error, π_y = .9", apo)
    yield equal("the same under GRPO", grpo, 0.1)


@statement("C20", "KL on errors alone", Truth.CONDITIONAL, where="section 5, baselines")
def error_only_penalty() -> Iterator[Reading]:
    """A KL penalty on error tokens alone is a fair rival of the anchor.

    full KL: u times its force; k3: Σ_wrong (π_ref(w) − π(w))(e_w − π): it raises errors to the reference.
    """
    probs, ref = dist(0.9, 0.04, 0.03, 0.03), dist(0.5, 0.1, 0.2, 0.2)
    problem, wrong = bandit(ref, dist(1, 1, 0, 0)), torch.tensor([2, 3])

    def alone(loss: GRPOKL) -> Tensor:
        total, plain = (expected_force(problem, probs.log()[None], x, GROUP) for x in (loss, GRPO()))
        return (total - plain)[0]

    full = alone(GRPOKL(kl_coef=1.0, kl_estimator="full", error_only=True))
    k3 = alone(GRPOKL(kl_coef=1.0, kl_estimator="k3", kl_clamp=None, error_only=True))
    sampled = ((ref - probs)[wrong][:, None] * form.towards_token(probs.expand(2, -1), wrong)).sum(0)
    yield same("full KL against u·(force of KL)", full, 0.06 * form.reverse_kl(probs[None], ref[None])[0])
    yield same("k3 against Σ_wrong (ref − π)(e_w − π)", k3, sampled)
    yield equal("k3: force on an error", k3[2], 0.160, 5e-4)
    yield equal("k3: force on the valid leader", k3[0], -0.306, 5e-4)
