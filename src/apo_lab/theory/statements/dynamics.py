"""What a force leads to: contraction, divergence penalties, the trust region."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.theory import closed_forms as form
from apo_lab.theory.draws import dist, random_probs, seeded
from apo_lab.theory.expectations import expected_force
from apo_lab.theory.flow import flow, inner_steps, step
from apo_lab.theory.forces import log_growth, loss_output, token_force, token_forces
from apo_lab.theory.problems import Tree, bandit
from apo_lab.theory.statements.record import Reading, Statement, Verdict
from apo_lightning.advantages import GroupNormalized, SignedReward
from apo_lightning.losses import APO, GRPO, GRPOKL, PolicyLoss

GROUP = GroupNormalized()
POLICY_GRADIENT = SignedReward(positive_weight=1.0, negative_weight=1.0)
NSR = SignedReward()


def entropy(probs: Tensor) -> Tensor:
    """H of the last axis [nats]."""
    return -torch.special.xlogy(probs, probs).sum(-1)


def recursive_contraction() -> Sequence[Reading]:
    """Entropy among the valid, and two exponents of policy gradient's flow."""
    generator = seeded(21)
    counts = dict.fromkeys(("PG, η = 1 to 1000", "NSR", "GRPO", "APO"), 0)
    total_rises, spreads = 0, []
    for _ in range(40):
        probs, ref = random_probs(1, 6, generator)[0], dist(0.3, 0.3, 0.3, 0.05, 0.03, 0.02)
        problem, logits = bandit(ref, dist(1, 1, 1, 0, 0, 0)), probs.log()[None]
        eta = 10 ** (3 * torch.rand(1, generator=generator).item())
        methods = (
            (GRPO(), POLICY_GRADIENT, eta),
            (GRPO(), NSR, 0.01),
            (GRPO(), GROUP, 0.01),
            (APO(anchor_size=4), GROUP, 0.01),
        )
        for name, (loss, advantage, size) in zip(counts, methods, strict=True):
            force = expected_force(problem, logits, loss, advantage)
            after = step(logits, force, size).softmax(1)[0]
            valid = (entropy(p[:3] / p[:3].sum()).item() for p in (probs, after))
            before_valid, after_valid = valid
            counts[name] += after_valid > before_valid + 1e-12
            total_rises += name == "GRPO" and entropy(after).item() > entropy(probs).item()
            slopes = (force[0, :2] - force[0, 2]) / (probs[:2] - probs[2])
            spreads.append(((slopes[0] - slopes[1]) / slopes[0]).abs().item())
    readings = [
        Reading(what=f"rises of H(π|valid) in 40, {name}", measured=count, predicted=0)
        for name, count in counts.items()
    ]
    wrong, rare = _exponents()
    return [
        *readings,
        Reading(
            what="f_i − f_j = B(π_i − π_j): relative difference of B",
            measured=max(spreads),
            predicted=0.0,
            tolerance=1e-8,
        ),
        Reading(what="rises of total H in 40, GRPO", measured=total_rises, predicted=0, relation=">"),
        Reading(what="exponent of π_wrong in t, PG flow to 10⁶", measured=wrong, predicted=-1.0, tolerance=0.01),
        Reading(what="exponent of π_k in t", measured=rare, predicted=-0.5, tolerance=0.01),
    ]


def _exponents() -> tuple[float, float]:
    """d log π/d log t between t = 10⁵ and 10⁶ of a wrong token and of the rarer of two valid ones."""
    start = dist(0.5, 0.2, 0.3)
    problem = bandit(start, dist(1, 1, 0))

    def force(z: Tensor) -> Tensor:
        return expected_force(problem, z, GRPO(), POLICY_GRADIENT) / 2

    early = flow(start.log()[None], force, 1e5, stride=0.05, growth=0.04)
    # From t = 10⁵ the clock starts anew, so steps are bound by the logits' movement alone.
    late = flow(early, force, 9e5, stride=0.01)
    slopes = (late.log_softmax(1) - early.log_softmax(1))[0] / torch.tensor(10.0).log()
    return slopes[2].item(), slopes[1].item()


def recall_says_nothing() -> Sequence[Reading]:
    """A policy with the paper's recall on which nothing is squeezed."""
    ref = torch.cat([dist(0.8384), torch.full((7,), 0.1616 / 7, dtype=torch.float64)])
    problem = bandit(ref, torch.ones(8, dtype=torch.float64))
    moved = expected_force(problem, ref.log()[None], GRPO(), GROUP, 8).abs().max().item()
    wrong_rest = bandit(ref, dist(0, 1, 1, 1, 1, 1, 1, 1))
    force = expected_force(wrong_rest, ref.log()[None], GRPO(), GROUP, 8)[0]
    return [
        Reading(what="top-1 recall .8384, all valid: largest force", measured=moved, predicted=0.0),
        Reading(
            what="the same, leader wrong: growth of the 16 %",
            measured=log_growth(ref, force)[1].item(),
            predicted=0,
            relation=">",
        ),
        Reading(
            what="200 tokens at top-8 recall .9747, if independent",
            measured=0.9747**200,
            predicted=0.006,
            tolerance=5e-4,
        ),
    ]


def penalty_against_reward() -> Sequence[Reading]:
    """⟨f_KL, f_PG⟩ along the flow from the reference, and after a collapse."""
    generator = seeded(22)
    penalty = GRPOKL(kl_coef=1.0, kl_estimator="full")
    opposed, agreed = [], []
    for _ in range(10):
        ref = random_probs(1, 5, generator, 1.0)[0]
        problem, start = bandit(ref, dist(1, 0, 1, 0, 0)), ref.log()[None]

        def force(z: Tensor, problem: Tree = problem) -> Tensor:
            return expected_force(problem, z, GRPO(), POLICY_GRADIENT)

        def product(z: Tensor, force=force, ref: Tensor = ref) -> float:
            kl = token_forces(penalty, z, ref[None], torch.tensor([0]), torch.zeros(1, dtype=torch.float64))
            return (kl * force(z)).sum().item()

        for end in (0.2, 2.0):
            opposed.append(product(flow(start, force, end, stride=0.1)) < 0)
        collapsed = (ref.log() + dist(0, 12, 0, 0, 0))[None]
        agreed.append(product(collapsed) > 0)
    return [
        Reading(what="share opposed along the flow from π_ref", measured=sum(opposed) / len(opposed), predicted=1.0),
        Reading(
            what="share that agree after collapse onto an error", measured=sum(agreed) / len(agreed), predicted=1.0
        ),
    ]


def _ratio_after(
    loss: PolicyLoss, old: Float[Tensor, "vocab"], ref: Float[Tensor, "vocab"], *, eta: float, count: int
) -> Tensor:
    """π/π_old of each token after inner steps on the error 0."""
    path = inner_steps(old.log(), lambda z: token_force(loss, z.softmax(0), ref, 0, old=old), eta, count)
    return path.softmax(1)[-1] / old


def penalty_leaves_trust_region() -> Sequence[Reading]:
    """Where the surrogate is flat the penalty goes on."""
    old, ref = dist(0.30, 0.50, 0.20), dist(0.05, 0.55, 0.40)
    generator, readings = seeded(23), []
    probs, other = random_probs(1, 6, generator, 1.0)[0], random_probs(1, 6, generator, 1.0)[0]
    penalty = GRPOKL(kl_coef=1.0, kl_estimator="full")
    force = token_force(penalty, probs, other, 0, advantage=0.0)
    gap = other.log() - probs.log()
    kl = -(probs * gap).sum()
    predicted = (probs[0] * (gap[0] + kl) - (probs.square() * (gap + kl)).sum()).item()
    readings.append(
        Reading(what="rate of log π_y under KL alone", measured=log_growth(probs, force)[0].item(), predicted=predicted)
    )
    for coef, end, eta, count, tolerance in ((0.0, 0.794, 0.03, 100, 3e-3), (1.0, 1 / 6, 0.2, 350, 1e-3)):
        loss = replace(penalty, kl_coef=coef)
        at_end = _ratio_after(loss, old, ref, eta=eta, count=count)[0].item()
        readings.append(
            Reading(what=f"r at the end, coefficient {coef:g}", measured=at_end, predicted=end, tolerance=tolerance)
        )
    weak = _ratio_after(replace(penalty, kl_coef=0.01), old, ref, eta=0.2, count=150)[0].item()
    readings.append(Reading(what="r at η·steps = 30, coefficient 0.01", measured=weak, predicted=0.8, relation="<"))
    for coef in (0.01, 1.0):
        same = _ratio_after(replace(penalty, kl_coef=coef), old, old, eta=0.02, count=100)[0].item()
        readings.append(
            Reading(what=f"π_old = π_ref: r, coefficient {coef:g}", measured=same, predicted=0.795, tolerance=0.0055)
        )
    return readings


def adherence() -> Sequence[Reading]:
    """Four ways out of the trust region under APO."""
    empty = APO(anchor_size=1)
    old, ref = dist(0.5, 0.3, 0.2), dist(0.6, 0.2, 0.2)
    floor = (1 - 0.2) / 1.05
    low = _ratio_after(empty, old, ref, eta=0.01, count=100)[0].item()
    wide, sparse = dist(0.90, 0.05, 0.03, 0.02), dist(0.4, 0.2, 0.2, 0.2)
    inside = _ratio_after(APO(anchor_size=4), wide, sparse, eta=0.04, count=150)
    stop = (1 - 0.2 + 0.1 * (wide * inside)[1:].sum().item() / 0.6) / 1.05
    above = (
        token_force(APO(anchor_size=2), dist(0.9, 0.05, 0.05), ref, 0, old=old * dist(0.6, 1.75, 0.875))
        .abs()
        .max()
        .item()
    )
    capped = APO(anchor_size=2, dual_clip=3.0)
    beyond = dist(0.9, 0.05, 0.05), dist(0.1, 0.45, 0.45)
    big = step(old.log(), token_force(APO(anchor_size=3), old, ref, 0), 3.0).softmax(0) / old
    anchor = _shared_prefix()
    return [
        Reading(what="r where the gate shuts, empty S", measured=low, predicted=floor, tolerance=2.5e-3),
        Reading(what="that r beside 1 − ε", measured=low, predicted=0.8, relation="<"),
        Reading(what="r where the gate shuts, S of 3", measured=inside[0].item(), predicted=stop, tolerance=2.5e-3),
        Reading(what="largest ratio of an anchor then", measured=inside[1:].max().item(), predicted=1.2, relation=">"),
        Reading(what="largest |f| at r = 3", measured=above, predicted=0.1, relation=">"),
        Reading(
            what="largest |f| at r = 9, dual clip 3",
            measured=token_force(capped, beyond[0], ref, 0, old=beyond[1]).abs().max().item(),
            predicted=0.0,
        ),
        Reading(what="one step of η = 3: r", measured=big[0].item(), predicted=0.8, relation="<"),
        Reading(
            what="one step of η = 3: largest ratio of an anchor",
            measured=big[1:].max().item(),
            predicted=1.2,
            relation=">",
        ),
        *anchor,
    ]


def _shared_prefix() -> Sequence[Reading]:
    """A = +1 and −1 on one token: what a right and a wrong completion of one prefix do to it."""
    old, ref = dist(0.05, 0.07, 0.01, 0.87), dist(0.3, 0.5, 0.15, 0.05)
    tokens, advantages = torch.tensor([0, 0]), dist(1, -1)

    def after(loss: PolicyLoss, count: int) -> Tensor:
        def force(z: Tensor) -> Tensor:
            rows = token_forces(
                loss, z.expand(2, -1), ref.expand(2, -1), tokens, advantages, old_logits=old.log().expand(2, -1)
            )
            return rows.mean(0)

        return inner_steps(old.log(), force, 2.0, count).softmax(1)[-1]

    grpo, apo = after(GRPO(), 20), after(APO(anchor_size=3), 250)
    return [
        Reading(
            what="A = ±1 on one token, GRPO: largest move", measured=(grpo - old).abs().max().item(), predicted=0.0
        ),
        Reading(
            what="the same, APO: r_a at the end (.12 at the start)",
            measured=((apo[1] + apo[2]) / 0.65).item(),
            predicted=0.5,
            relation=">",
        ),
        Reading(
            what="the same, APO: likeliest anchor's ratio",
            measured=(apo[1] / old[1]).item(),
            predicted=2.0,
            relation=">",
        ),
        Reading(
            what="the same, APO: rarest anchor's ratio over that",
            measured=(apo[2] / old[2] / (apo[1] / old[1])).item(),
            predicted=0.8,
            relation="<",
        ),
    ]


def saturation() -> Sequence[Reading]:
    """The gate at r = 1: shut above κ, whatever was or was not penalised."""
    loss, readings = APO(anchor_size=2), []
    kappa = (loss.push_coef - (1 - loss.clip_eps)) / loss.pull_coef
    for share in (0.99, 1.01):
        z_ref = 0.2 / (kappa * share)
        ref = dist(1 - z_ref - 1e-3, z_ref, 1e-3)
        flat = loss_output(loss, dist(0.79, 0.2, 0.01), ref, 0).metrics["clip_fraction"].item()
        readings.append(Reading(what=f"gate shut at r_a = {share:.2f}·κ", measured=flat, predicted=float(share > 1)))
    readings.append(Reading(what="κ of the shipped loss", measured=loss.saturated_above, predicted=kappa))
    sure = loss_output(loss, dist(0.9, 0.09, 0.01), dist(0.99, 0.009, 0.001), 0)
    force = token_force(loss, dist(0.9, 0.09, 0.01), dist(0.99, 0.009, 0.001), 0).abs().max().item()
    return [
        *readings,
        Reading(
            what="r_a where the reference is sure of the error",
            measured=sure.metrics["apo/anchor_ratio"].item(),
            predicted=10.0,
            tolerance=1e-9,
        ),
        Reading(what="largest force on that error, π_y = .9", measured=force, predicted=0.0),
        Reading(
            what="the same under GRPO",
            measured=token_force(GRPO(), dist(0.9, 0.09, 0.01), dist(0.99, 0.009, 0.001), 0).abs().max().item(),
            predicted=0.1,
        ),
    ]


def error_only_penalty() -> Sequence[Reading]:
    """On the tokens of errors alone: full KL, and k3."""
    probs, ref, quality = dist(0.9, 0.04, 0.03, 0.03), dist(0.5, 0.1, 0.2, 0.2), dist(1, 1, 0, 0)
    problem = bandit(ref, quality)

    def alone(loss: GRPOKL) -> Tensor:
        plain = expected_force(problem, probs.log()[None], GRPO(), GROUP)
        return (expected_force(problem, probs.log()[None], loss, GROUP) - plain)[0]

    full = GRPOKL(kl_coef=1.0, kl_estimator="full", error_only=True)
    k3 = GRPOKL(kl_coef=1.0, kl_estimator="k3", kl_clamp=None, error_only=True)
    everywhere = 0.06 * form.reverse_kl(probs[None], ref[None])[0]
    wrong = torch.tensor([2, 3])
    rows = form.towards_token(probs.expand(2, -1), wrong)
    sampled = ((ref - probs)[wrong][:, None] * rows).sum(0)
    force = alone(k3)
    return [
        Reading(
            what="full KL against u·(force of KL): largest difference",
            measured=(alone(full) - everywhere).abs().max().item(),
            predicted=0.0,
        ),
        Reading(
            what="k3 against Σ_wrong (ref − π)(e_w − π): largest difference",
            measured=(force - sampled).abs().max().item(),
            predicted=0.0,
        ),
        Reading(what="k3: force on an error", measured=force[2].item(), predicted=0.160, tolerance=5e-4),
        Reading(what="k3: force on the valid leader", measured=force[0].item(), predicted=-0.306, tolerance=5e-4),
    ]


STATEMENTS = (
    Statement(
        key="C7",
        title="Recursive contraction",
        claim="On-policy updates contract the space of solutions, and the anchor undoes it.",
        where="section 3.1",
        formula="f_i − f_j = B(π_i − π_j), B ≥ 0, for valid i, j in T_K: H(π|valid) never rises, under APO neither; "
        "PG flow has π_wrong ~ 1/t and π_k ~ t^−½",
        verdict=Verdict.CONDITIONAL,
        check=recursive_contraction,
    ),
    Statement(
        key="C8",
        title="Recall and elimination",
        claim="A top-1 recall of 83.84 % guarantees that squeezing eliminates 16 % of the paths.",
        where="table 1",
        formula="recall does not determine the force: with all tokens valid it is 0, with a wrong leader the 16 % grow",
        verdict=Verdict.FALSE,
        check=recall_says_nothing,
    ),
    Statement(
        key="C9",
        title="Divergence against reward",
        claim="The KL penalty's gradient conflicts with the reward's.",
        where="section 3.3, Fig. 4",
        formula="⟨f_KL, f_PG⟩ < 0 along the reward's flow from π_ref, > 0 after a collapse onto an error",
        verdict=Verdict.CONDITIONAL,
        check=penalty_against_reward,
    ),
    Statement(
        key="C10",
        title="KL leaves the trust region",
        claim="Where the clip is flat, KL pushes the ratio significantly beyond the window.",
        where="appendix B.4, case 1",
        formula="there d log π_y/dt = π_y(D_y + KL) − Σπ²(D + KL), D = log(π_ref/π): outward iff of the sign of log r",
        verdict=Verdict.CONDITIONAL,
        check=penalty_leaves_trust_region,
        figure="trust_region",
    ),
    Statement(
        key="C11",
        title="APO stays in the trust region",
        claim="It is mathematically impossible for the anchor to push the update into an unstable regime.",
        where="appendix B.4, case 2",
        formula="the gate is on ρ: r stops at (1 − ε + βr_a)/λ; anchors' ratios, ρ > 1 + ε, a large step have no cap",
        verdict=Verdict.FALSE,
        check=adherence,
        figure="trust_region",
    ),
    Statement(
        key="C19",
        title="Sufficiently penalised",
        claim="A zero gradient below 1 − ε confirms that the policy has been penalised enough.",
        where="appendix B.4, clipped region",
        formula="at r = 1 the gate is shut iff r_a > κ = (λ − (1 − ε))/β, before any penalty",
        verdict=Verdict.FALSE,
        check=saturation,
        figure="phases",
    ),
    Statement(
        key="C20",
        title="KL on errors alone",
        claim="A KL penalty on error tokens alone is a fair rival of the anchor.",
        where="section 5, baselines",
        formula="full KL: u times its force; k3: Σ_wrong (π_ref(w) − π(w))(e_w − π): it raises errors to the reference",
        verdict=Verdict.CONDITIONAL,
        check=error_only_penalty,
    ),
)
