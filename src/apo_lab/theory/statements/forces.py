"""The rows of the table of forces, and the expected force of a group."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from apo_lab.theory import closed_forms as form
from apo_lab.theory.draws import dist, random_probs, random_tokens, seeded
from apo_lab.theory.expectations import cases, expected_force, sampled_force
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import Tree, bandit
from apo_lab.theory.statements.record import Reading, Statement, Verdict
from apo_lightning.advantages import GroupNormalized, SignedReward
from apo_lightning.losses import APO, GRPO, GRPOKL

GROUP = GroupNormalized()
NSR = SignedReward(positive_weight=0.0, negative_weight=1.0)
PSR = SignedReward(positive_weight=1.0, negative_weight=0.0)


def gap(measured: Tensor, predicted: Tensor) -> float:
    """The largest difference."""
    return (measured - predicted).abs().max().item()


def rows_of_forces() -> Sequence[Reading]:
    """Every row on 400 random states whose policy has left π_old."""
    generator = seeded(1)
    probs, ref = random_probs(400, 8, generator, 1.0), random_probs(400, 8, generator, 1.0)
    old = (probs.log() + 0.2 * torch.randn(probs.shape, generator=generator, dtype=torch.float64)).softmax(1)
    y = random_tokens(probs, generator)
    at_y = lambda p: p.gather(1, y[:, None])[:, 0]  # noqa: E731 - a name for an index
    ratio, delta = at_y(probs) / at_y(old), at_y(ref).log() - at_y(probs).log()
    up, down = torch.full_like(ratio, 1.7), torch.full_like(ratio, -1.3)
    zero, toward = torch.zeros_like(ratio), form.towards_token(probs, y)

    def force(loss: GRPO | APO, advantages: Tensor) -> Tensor:
        return token_forces(loss, probs.log(), ref, y, advantages, old_logits=old.log())

    def penalty(estimator: str, clamp: float | None = None) -> Tensor:
        return force(GRPOKL(kl_coef=1.0, kl_estimator=estimator, kl_clamp=clamp), zero)

    readings = [
        ("reward, r ≤ 1 + ε", force(GRPO(), up), form.reward(probs, y, up, ratio) * (ratio <= 1.2)[:, None]),
        ("KL(π‖π_ref), full", penalty("full"), form.reverse_kl(probs, ref)),
        ("k1", penalty("k1"), -1.0 * toward),
        ("k2", penalty("k2"), delta[:, None] * toward),
        ("k3", penalty("k3"), -(1 - delta.exp())[:, None] * toward),
        ("entropy bonus", force(GRPO(entropy_coef=1.0), zero), form.entropy_bonus(probs)),
    ]
    for size in (2, 5, 8):
        for naive in (False, True):
            loss = APO(anchor_size=size, exclude_sampled=not naive)
            members = form.anchors(ref, y, size, naive=naive)
            r_a = form.anchor_ratio(probs, ref, members)
            push = loss.push_coef * form.reward(probs, y, down, ratio)
            both = push + form.pull(probs, ref, members, down, loss.pull_coef)
            gate = loss.push_coef * ratio - loss.pull_coef * r_a >= 1 - loss.clip_eps
            name = f"push + pull, K = {size}{', naive' if naive else ''}"
            readings.append((name, force(loss, down), both * gate[:, None]))
    rows = [Reading(what=f"{name}: largest difference", measured=gap(a, b), predicted=0.0) for name, a, b in readings]
    # In expectation over y ~ π, k3 is the other divergence.
    every = torch.arange(8).repeat(400)
    repeat = lambda p: p.repeat_interleave(8, dim=0)  # noqa: E731 - a name for an index
    k3 = GRPOKL(kl_coef=1.0, kl_estimator="k3", kl_clamp=None)
    forces = token_forces(k3, repeat(probs).log(), repeat(ref), every, torch.zeros(3200, dtype=torch.float64))
    mean = (probs[..., None] * forces.view(400, 8, 8)).sum(1)
    expected = form.forward_kl(probs, ref)
    return [*rows, Reading(what="E k3 = KL(π_ref‖π): largest difference", measured=gap(mean, expected), predicted=0.0)]


def master_identity() -> Sequence[Reading]:
    """∂ρ/∂z through the shipped loss at A = −1, where the loss is ρ itself."""
    generator = seeded(2)
    probs, ref = random_probs(400, 8, generator, 1.0), random_probs(400, 8, generator, 1.0)
    y, loss = random_tokens(probs, generator), APO(anchor_size=5)
    members = form.anchors(ref, y, 5)
    rho = loss.push_coef - loss.pull_coef * form.anchor_ratio(probs, ref, members)
    push = torch.nn.functional.one_hot(y, 8).double() * loss.push_coef / probs.gather(1, y[:, None])
    coefficient = push - members * (loss.pull_coef / (ref * members).sum(1, keepdim=True))
    gradient = probs * (coefficient - rho[:, None])
    open_gate = rho >= 1 - loss.clip_eps
    forces = token_forces(loss, probs.log(), ref, y, -torch.ones(400, dtype=torch.float64))
    return [
        Reading(
            what="−f against ∂ρ/∂z: largest difference",
            measured=gap(-forces, gradient * open_gate[:, None]),
            predicted=0.0,
        ),
        Reading(what="states whose gate is open", measured=float(open_gate.sum()), predicted=200, relation=">"),
    ]


def binary_tree(generator: torch.Generator) -> Tree:
    """Three levels of four tokens, a third of the leaves right."""
    return Tree(ref=random_probs(21, 4, generator), success=(torch.rand(64, generator=generator) < 1 / 3).double())


def clock() -> Sequence[Reading]:
    """a⁺ + a⁻, and a± of sampled groups."""

    def mean(accuracy: float, size: int | None) -> tuple[float, float]:
        right, wrong = cases(GROUP, accuracy, size)
        return sum(c.weight * c.advantage for c in right), -sum(c.weight * c.advantage for c in wrong)

    up, down = mean(0.3, 8)
    infinite = mean(0.3, None)
    rare = mean(1e-7, 8)
    large = mean(0.3, 400)
    return [
        Reading(what="J·a⁺ − u·a⁻, G = 8, J = 0.3", measured=0.3 * up - 0.7 * down, predicted=0.0),
        Reading(what="a⁺ + a⁻, G = 8, J = 0.3", measured=up + down, predicted=1.836, tolerance=5e-4),
        Reading(what="a⁺ + a⁻, infinite group, J = 0.3", measured=sum(infinite), predicted=1 / math.sqrt(0.3 * 0.7)),
        Reading(
            what="a⁺ + a⁻, G = 400, against the limit", measured=sum(large), predicted=sum(infinite), tolerance=0.01
        ),
        Reading(what="a⁺ + a⁻, G = 8, J → 0", measured=sum(rare), predicted=7 / math.sqrt(8), tolerance=1e-4),
    ]


def one_vector_field() -> Sequence[Reading]:
    """GRPO, NSR, PSR and policy gradient on one tree, and a mean of sampled groups."""
    generator = seeded(3)
    tree = binary_tree(generator)
    probs = random_probs(21, 4, generator)
    logits, accuracy = probs.log(), tree.accuracy(probs)
    visits, quality = tree.visits(probs), tree.success_of_tokens(probs)
    value = (probs * quality).sum(1, keepdim=True)
    gradient = visits[:, None] / 3 * probs * (quality - value)
    # At the inner nodes a group's baseline adds nothing in expectation: Σ_v π_v (Q_v − Q(n)) = 0.
    sigma = math.sqrt(accuracy * (1 - accuracy))
    grpo = expected_force(tree, logits, GRPO(), GROUP)
    finite = expected_force(tree, logits, GRPO(), GROUP, 8)
    right, wrong = cases(GROUP, accuracy, 8)
    speed = sum(c.weight * c.advantage for c in right) - sum(c.weight * c.advantage for c in wrong)
    nsr = expected_force(tree, logits, GRPO(), NSR) * (1 - accuracy)
    psr = expected_force(tree, logits, GRPO(), PSR) * accuracy
    draws = sampled_force(tree, logits.expand(20000, -1, -1), GRPO(), GROUP, 8, seeded(4))
    error = draws.std(0) / math.sqrt(20000)
    deviation = ((draws.mean(0) - finite).abs() / error.clamp(min=1e-9)).max().item()
    return [
        Reading(what="GRPO, infinite group, against PG/σ", measured=gap(grpo, gradient / sigma), predicted=0.0),
        Reading(what="GRPO, G = 8, against (a⁺ + a⁻)·PG", measured=gap(finite, speed * gradient), predicted=0.0),
        Reading(what="NSR·u against PG", measured=gap(nsr, gradient), predicted=0.0),
        Reading(what="PSR·J against PG", measured=gap(psr, gradient), predicted=0.0),
        Reading(
            what="sampled groups against GRPO, G = 8 [standard errors]", measured=deviation, predicted=4.5, relation="<"
        ),
    ]


def apo_expectation() -> Sequence[Reading]:
    """APO's closed form with and without tokens beyond the gate, and its gain on a valid anchor."""
    readings = []
    # The reference is surer of token 1, an error, than the policy is: where that is sampled, r_a is 0.75/0.2.
    sure = dist(0.03, 0.8, 0.03, 0.03, 0.03, 0.03, 0.03, 0.02)
    probs = dist(0.3, 0.24, 0.1, 0.1, 0.1, 0.08, 0.05, 0.03)
    for name, ref in (("no token saturated", probs.flip(0)), ("a token saturated", sure)):
        quality = (torch.arange(8) % 3 == 0).double()
        loss = APO(anchor_size=6)
        closed, num_shut = _apo_closed_form(probs, ref, quality, loss)
        shipped = expected_force(bandit(ref, quality), probs.log()[None], loss, GROUP)[0]
        readings.append(
            Reading(what=f"{name} ({num_shut} of 8): largest difference", measured=gap(shipped, closed), predicted=0.0)
        )
    for rare in (1e-2, 1e-5):
        readings.append(_gain(rare))
    return readings


def _apo_closed_form(probs: Tensor, ref: Tensor, quality: Tensor, loss: APO) -> tuple[Tensor, int]:
    accuracy = (probs * quality).sum().item()
    up, down = math.sqrt((1 - accuracy) / accuracy), math.sqrt(accuracy / (1 - accuracy))
    rows, y = probs.expand(len(probs), -1), torch.arange(len(probs))
    members = form.anchors(ref.expand_as(rows), y, loss.anchor_size)
    r_a = form.anchor_ratio(rows, ref.expand_as(rows), members)
    on = (loss.push_coef - loss.pull_coef * r_a >= 1 - loss.clip_eps).double()
    wrong = probs * (1 - quality) * on
    own = quality * up - (1 - quality) * loss.push_coef * down * on
    pg = probs * (own - accuracy * up + loss.push_coef * down * wrong.sum())
    pulls = form.pull(rows, ref.expand_as(rows), members, torch.ones_like(probs), loss.pull_coef)
    return pg + down * (wrong[:, None] * pulls).sum(0), int(((on == 0) & (quality < 1)).sum())


def _gain(rare: float) -> Reading:
    """A valid anchor of probability `rare` beside a wrong leader: J = 0.06 and Z_ref near 0.5."""
    probs = dist(0.6, 0.06 - rare, rare, 0.2, 0.1, 0.04)
    ref, quality = dist(0.48, 0.2, 0.2, 0.04, 0.04, 0.04), dist(0, 1, 1, 0, 0, 0)
    loss, problem = APO(anchor_size=3), bandit(ref, quality)
    apo, grpo = (expected_force(problem, probs.log()[None], x, GROUP)[0, 2].item() for x in (loss, GRPO()))
    rows, y = probs.expand(6, -1), torch.arange(6)
    members = form.anchors(ref.expand(6, -1), y, 3)
    leak = (1 - (rows * members).sum(1)) / (ref * members).sum(1)
    wrong = probs * (1 - quality)
    mean_leak = ((wrong * leak).sum() / wrong.sum()).item()
    predicted = 1 + 0.06 * ((loss.push_coef - 1) + loss.pull_coef * mean_leak)
    return Reading(
        what=f"f_k(APO)/f_k(GRPO), π_k = {rare:.0e}, J = 0.06", measured=apo / grpo, predicted=predicted, tolerance=1e-9
    )


def all_wrong_group() -> Sequence[Reading]:
    """Eight errors."""
    ref, probs = dist(0.4, 0.3, 0.2, 0.1), dist(0.7, 0.1, 0.1, 0.1)
    problem = bandit(ref, torch.zeros(4, dtype=torch.float64))
    force = {
        name: sampled_force(problem, probs.log()[None, None], APO(anchor_size=3), advantage, 8, seeded(6))
        .abs()
        .max()
        .item()
        for name, advantage in (("group", GROUP), ("signed", NSR))
    }
    return [
        Reading(what="APO on GroupNormalized: largest force", measured=force["group"], predicted=0.0, tolerance=0.0),
        Reading(what="APO on SignedReward: largest force", measured=force["signed"], predicted=0.1, relation=">"),
    ]


STATEMENTS = (
    Statement(
        key="F1",
        title="Forces of one token",
        claim="What each term of the losses does to the logits of its position.",
        where="Eqs. 1, 9, 23; the table of forces of this project",
        formula="reward A·r(e_y − π); push −|A|λr(e_y − π); pull |A|βr_a(q_S − π); KL, k1, k2, k3, entropy bonus",
        verdict=Verdict.EXACT,
        check=rows_of_forces,
    ),
    Statement(
        key="F2",
        title="Master identity",
        claim="Push and pull are one gradient of the rectified ratio.",
        where="Eq. 9",
        formula="∂ρ/∂z_v = π(v)(c_v − ρ), c_y = λ/π_old(y), c_k = −β/Z_ref on S",
        verdict=Verdict.EXACT,
        check=master_identity,
    ),
    Statement(
        key="E1",
        title="The clock of a group",
        claim="Advantages of a group, in expectation over the others of the group.",
        where="this project",
        formula="J·a⁺ = u·a⁻; a⁺ + a⁻ → 1/√(J·u) for large G, (G − 1)/√G as J → 0",
        verdict=Verdict.EXACT,
        check=clock,
    ),
    Statement(
        key="E2",
        title="One vector field",
        claim="Positive and negative samples drive different dynamics.",
        where="section 3.1 (dual dynamics)",
        formula="E f of GRPO, NSR, PSR is P(n)/L·π_v(Q_v − Q(n)) times (a⁺ + a⁻), 1/u, 1/J: one field, three clocks",
        verdict=Verdict.FALSE,
        check=one_vector_field,
    ),
    Statement(
        key="E3",
        title="APO's expected force",
        claim="The anchor raises valid branches beyond what policy gradient does.",
        where="appendix B.3",
        formula="f_k(APO)/f_k(GRPO) = 1 + J[(λ − 1) + β·E((1 − Π_S)/Z_ref)], for valid k in T_K and no y saturated",
        verdict=Verdict.CONDITIONAL,
        check=apo_expectation,
    ),
    Statement(
        key="E4",
        title="A group of errors",
        claim="When errors are all there is, the anchor is what recovers.",
        where="section 4, appendix B.2",
        formula="the force of an all-wrong group is exactly 0 under GroupNormalized, not under SignedReward",
        verdict=Verdict.FALSE,
        check=all_wrong_group,
    ),
)
