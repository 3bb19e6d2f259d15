"""Statements on the force of one token (F) and the expected force of a group (E)."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from apo_lab.theory import closed_forms as form
from apo_lab.theory.expectations import GROUP, NSR, PSR, cases, expected_force, sampled_force
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import Tree, bandit, dist, random_probs, random_states, random_tokens, seeded
from apo_lab.theory.statements.statement import Reading, Truth, above, below, equal, same, statement
from apo_lightning.losses import APO, GRPO, GRPOKL


@statement("F1", "Forces of one token", Truth.EXACT, where="Eqs. 1, 9, 23; the table of forces of this project")
def rows_of_forces() -> Iterator[Reading]:
    """What each term of the losses does to the logits of its position.

    reward A·r(e_y − π); push −|A|λr(e_y − π); pull |A|βr_a(q_S − π); KL, k1, k2, k3, entropy bonus.
    """
    generator = seeded(1)
    probs, ref = random_probs(400, 8, generator, 1.0), random_probs(400, 8, generator, 1.0)
    old = (probs.log() + 0.2 * torch.randn(probs.shape, generator=generator, dtype=torch.float64)).softmax(1)
    y = random_tokens(probs, generator)
    p_y, old_y, ref_y = (p.gather(1, y[:, None])[:, 0] for p in (probs, old, ref))
    ratio, delta = p_y / old_y, (ref_y.log() - p_y.log())[:, None]
    up, down = torch.full_like(ratio, 1.7), torch.full_like(ratio, -1.3)
    toward = form.towards_token(probs, y)

    def force(loss: GRPO | APO, advantages: Tensor | float) -> Tensor:
        return token_forces(loss, probs.log(), ref, y, advantages, old_logits=old.log())

    def penalty(estimator: str) -> Tensor:
        return force(GRPOKL(kl_coef=1.0, kl_estimator=estimator, kl_clamp=None), 0.0)

    yield same("reward, r ≤ 1 + ε", force(GRPO(), up), form.reward(probs, y, up, ratio) * (ratio <= 1.2)[:, None])
    yield same("KL(π‖π_ref), full", penalty("full"), form.reverse_kl(probs, ref))
    yield same("k1", penalty("k1"), -1.0 * toward)
    yield same("k2", penalty("k2"), delta * toward)
    yield same("k3", penalty("k3"), -(1 - delta.exp()) * toward)
    yield same("entropy bonus", force(GRPO(entropy_coef=1.0), 0.0), form.entropy_bonus(probs))
    for size in (2, 5, 8):
        for naive in (False, True):
            loss = APO(anchor_size=size, exclude_sampled=not naive)
            members = form.anchors(ref, y, size, naive=naive)
            push = loss.push_coef * form.reward(probs, y, down, ratio)
            both = push + form.pull(probs, ref, members, down, loss.pull_coef)
            rho = loss.push_coef * ratio - loss.pull_coef * form.anchor_ratio(probs, ref, members)
            name = f"push + pull, K = {size}{', naive' if naive else ''}"
            yield same(name, force(loss, down), both * (rho >= 1 - loss.clip_eps)[:, None])
    # In expectation over y ~ π, the estimator k3 is the other divergence.
    k3 = GRPOKL(kl_coef=1.0, kl_estimator="k3", kl_clamp=None)
    forces = token_forces(k3, probs.log()[:, None].expand(-1, 8, -1), ref[:, None], torch.arange(8), 0.0)
    mean = (probs[..., None] * forces).sum(1)
    yield same("E k3 = KL(π_ref‖π)", mean, ref - probs)


@statement("F2", "Master identity", Truth.EXACT, where="Eq. 9")
def master_identity() -> Iterator[Reading]:
    """Push and pull are one gradient of the rectified ratio.

    ∂ρ/∂z_v = π(v)(c_v − ρ), c_y = λ/π_old(y), c_k = −β/Z_ref on S.
    """
    loss, (probs, ref, y) = APO(anchor_size=5), random_states(400, 8, seeded(2), 1.0)
    members = form.anchors(ref, y, 5)
    rho = loss.push_coef - loss.pull_coef * form.anchor_ratio(probs, ref, members)
    push = torch.nn.functional.one_hot(y, 8).double() * loss.push_coef / probs.gather(1, y[:, None])
    coefficient = push - members * (loss.pull_coef / (ref * members).sum(1, keepdim=True))
    gradient = probs * (coefficient - rho[:, None])
    open_gate = rho >= 1 - loss.clip_eps
    # At A = −1 the loss is ρ itself.
    yield same("−f against ∂ρ/∂z", -token_forces(loss, probs.log(), ref, y), gradient * open_gate[:, None])
    yield above("states whose gate is open", float(open_gate.sum()), 200)


def _clocks(accuracy: float, size: int | None) -> tuple[float, float]:
    """(a⁺, a⁻), the mean advantages of a right and of a wrong completion."""
    weights, advantages = cases(GROUP, accuracy, size)
    right, wrong = (weights * advantages).sum(1).tolist()
    return right, -wrong


@statement("E1", "The clock of a group", Truth.EXACT, where="this project")
def clock() -> Iterator[Reading]:
    """Advantages of a group, in expectation over the others of the group.

    J·a⁺ = u·a⁻; a⁺ + a⁻ → 1/√(J·u) for large G, (G − 1)/√G as J → 0.
    """
    up, down = _clocks(0.3, 8)
    infinite = sum(_clocks(0.3, None))
    yield equal("J·a⁺ − u·a⁻, G = 8, J = 0.3", 0.3 * up - 0.7 * down)
    yield equal("a⁺ + a⁻, G = 8, J = 0.3", up + down, 1.836, 5e-4)
    yield equal("a⁺ + a⁻, infinite group, J = 0.3", infinite, 1 / math.sqrt(0.3 * 0.7))
    yield equal("a⁺ + a⁻, G = 400, against the limit", sum(_clocks(0.3, 400)), infinite, 0.01)
    yield equal("a⁺ + a⁻, G = 8, J → 0", sum(_clocks(1e-7, 8)), 7 / math.sqrt(8), 1e-4)


@statement("E2", "One vector field", Truth.FALSE, where="section 3.1 (dual dynamics)")
def one_vector_field() -> Iterator[Reading]:
    """Positive and negative samples drive different dynamics.

    E f of GRPO, NSR, PSR is P(n)/L·π_v(Q_v − Q(n)) times (a⁺ + a⁻), 1/u, 1/J: one field, three clocks.
    """
    generator = seeded(3)
    # Three levels of four tokens, a third of the leaves right.
    tree = Tree(ref=random_probs(21, 4, generator), success=(torch.rand(64, generator=generator) < 1 / 3).double())
    probs = random_probs(21, 4, generator)
    logits, accuracy, quality = probs.log(), tree.accuracy(probs), tree.success_of_tokens(probs)
    value = (probs * quality).sum(1, keepdim=True)
    gradient = tree.visits(probs)[:, None] / 3 * probs * (quality - value)
    # At the inner nodes a group's baseline adds nothing in expectation: Σ_v π_v (Q_v − Q(n)) = 0.
    sigma = math.sqrt(accuracy * (1 - accuracy))
    yield same("GRPO, infinite group, against PG/σ", expected_force(tree, logits, GRPO(), GROUP), gradient / sigma)
    finite = expected_force(tree, logits, GRPO(), GROUP, 8)
    yield same("GRPO, G = 8, against (a⁺ + a⁻)·PG", finite, sum(_clocks(accuracy, 8)) * gradient)
    yield same("NSR·u against PG", expected_force(tree, logits, GRPO(), NSR) * (1 - accuracy), gradient)
    yield same("PSR·J against PG", expected_force(tree, logits, GRPO(), PSR) * accuracy, gradient)
    draws = sampled_force(tree, logits.expand(20000, -1, -1), GRPO(), GROUP, 8, seeded(4))
    error = draws.std(0) / math.sqrt(20000)
    deviation = ((draws.mean(0) - finite).abs() / error.clamp(min=1e-9)).max()
    yield below("sampled groups against GRPO, G = 8 [standard errors]", deviation, 4.5)


@statement("E3", "APO's expected force", Truth.CONDITIONAL, where="appendix B.3")
def apo_expectation() -> Iterator[Reading]:
    """The anchor raises valid branches beyond what policy gradient does.

    f_k(APO)/f_k(GRPO) = 1 + J[(λ − 1) + β·E((1 − Π_S)/Z_ref)], for valid k in T_K and no y saturated.
    """
    ref, quality = dist(0.48, 0.2, 0.2, 0.04, 0.04, 0.04), dist(0, 1, 1, 0, 0, 0)
    loss, problem = APO(anchor_size=3), bandit(ref, quality)
    members = form.anchors(ref.expand(6, -1), torch.arange(6), 3)
    for rare in (1e-2, 1e-5):
        probs = dist(0.6, 0.06 - rare, rare, 0.2, 0.1, 0.04)
        apo, grpo = (expected_force(problem, probs.log()[None], x, GROUP)[0, 2] for x in (loss, GRPO()))
        leak = (1 - (probs * members).sum(1)) / (ref * members).sum(1)
        mean_leak = (probs * (1 - quality) * leak).sum() / (probs * (1 - quality)).sum()
        predicted = 1 + 0.06 * ((loss.push_coef - 1) + loss.pull_coef * mean_leak)
        yield equal(f"f_k(APO)/f_k(GRPO), π_k = {rare:.0e}, J = 0.06", apo / grpo, predicted, 1e-9)


@statement("E4", "A group of errors", Truth.FALSE, where="section 4, appendix B.2")
def all_wrong_group() -> Iterator[Reading]:
    """When errors are all there is, the anchor is what recovers, as we read it.

    the force of an all-wrong group is exactly 0 under GroupNormalized, not under SignedReward.
    """
    problem, probs = bandit(dist(0.4, 0.3, 0.2, 0.1), dist(0, 0, 0, 0)), dist(0.7, 0.1, 0.1, 0.1)
    group, signed = (
        sampled_force(problem, probs.log()[None, None], APO(anchor_size=3), advantage, 8, seeded(6)).abs().max()
        for advantage in (GROUP, NSR)
    )
    yield equal("APO on GroupNormalized: largest force", group, tolerance=0.0)
    yield above("APO on SignedReward: largest force", signed, 0.1)
