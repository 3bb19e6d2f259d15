"""Statements C1 to C6: what an error, or a success, does to the tokens that were not sampled."""

from collections.abc import Iterator

import torch

from apo_lab.theory.expectations import GROUP, NSR, POLICY_GRADIENT, sampled_force
from apo_lab.theory.forces import log_growth, token_forces
from apo_lab.theory.problems import Tree, bandit, constant, dist, random_probs, random_tokens, seeded
from apo_lab.theory.statements.statement import Reading, Truth, above, equal, same, statement
from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.losses import APO, GRPO

PUSH = GRPO()


@statement("C1", "Squeezing gradient", Truth.EXACT, where="Eq. 2; appendix B.3")
def squeezing_gradient() -> Iterator[Reading]:
    """Pushing an error down raises the logit of k by π_y·π_k; the force ends with the error.

    −∂π_y/∂z_k = π_y·π_k, but −∂log π_y/∂z_k = π_k: the gradient that is used has no factor π_y.
    """
    probs = random_probs(200, 8, seeded(11))
    logits = probs.log().requires_grad_()
    (of_probability,) = torch.autograd.grad(logits.softmax(1)[:, 0].sum(), logits)
    of_log = token_forces(PUSH, probs.log(), probs, 0)
    others, first = probs[:, 1:], probs[:, :1]
    yield same("−∂π_y/∂z_k against π_y·π_k", -of_probability[:, 1:], first * others)
    yield same("−∂log π_y/∂z_k against π_k", of_log[:, 1:], others)
    yield above("force over the printed π_y·π_k: smallest", (of_log[:, 1:] / (first * others)).min(), 1.0)


@statement("C2", "Released mass", Truth.FALSE, where="section 2.2, appendix B.2", figure="recovery")
def released_mass() -> Iterator[Reading]:
    """An error's mass goes to the others in proportion to their mass.

    log π'_k/π_k = ηf_k − log⟨π, e^ηf⟩; ℓ_k = π_k + π_y − ‖π‖²: k loses iff π_k < ‖π‖² − π_y.
    """
    generator = seeded(12)
    probs = random_probs(2000, 6, generator)
    y = random_tokens(probs, generator)
    force = token_forces(PUSH, probs.log(), probs, y)
    after = (probs.log() + 3.0 * force).softmax(1)
    identity = 3.0 * force - (probs * (3.0 * force).exp()).sum(1, keepdim=True).log()
    yield same("log π'/π against ηf − log⟨π, e^ηf⟩, η = 3", (after / probs).log(), identity)
    growth, others = log_growth(probs, force), torch.arange(6) != y[:, None]
    first_order = probs + probs.gather(1, y[:, None]) - probs.square().sum(1, keepdim=True)
    difference = torch.where(others, growth - first_order, 0.0)
    yield same("ℓ_k against π_k + π_y − ‖π‖²", difference, torch.zeros_like(difference))
    lowest = torch.where(others, growth, torch.inf)[probs.argmax(1) == y].min()
    yield above("y the leader: smallest ℓ of another", lowest, 0.0)
    example = dist(0.90, 0.05, 0.04, 0.01)
    moved = (example.log() + 0.5 * token_forces(PUSH, example.log(), example, 1)).softmax(0)
    for token, value in enumerate((0.945, 0.021, 0.027, 0.0067)):
        yield equal(f"counter-example: π'_{token}", moved[token], value, 5e-4)
    share = (moved[0] - example[0]) / (example[1] - moved[1])
    yield equal("leader's share of what y lost", share, 1.55, 5e-3)


@statement("C3", "Passive suppression", Truth.CONDITIONAL, where="appendix B.2, first proposition")
def passive_suppression() -> Iterator[Reading]:
    """Rewarding a token strictly lowers the probability of every other.

    Δz_k = −ηAπ_k always; π_k falls for every step size where π_k + π_y ≥ ‖π‖², and may rise elsewhere.
    """
    generator = seeded(13)
    probs = random_probs(4000, 5, generator)
    y = random_tokens(probs, generator)
    size = torch.rand(4000, 1, generator=generator, dtype=torch.float64) * 5
    force = token_forces(PUSH, probs.log(), probs, y, 1.0)
    others = torch.arange(5) != y[:, None]
    rise = others & ((probs.log() + size * force).softmax(1) > probs * (1 + 1e-12))
    condition = probs + probs.gather(1, y[:, None]) >= probs.square().sum(1, keepdim=True)
    example = dist(0.90, 0.05, 0.05)
    moved = (example.log() + 0.1 * token_forces(PUSH, example.log(), example, 1, 1.0)).softmax(0)
    yield equal("Δz_k against −ηAπ_k: largest difference", (force + probs)[others].abs().max())
    yield equal("rises where π_k + π_y ≥ ‖π‖²", float((rise & condition).sum()))
    yield above("rises elsewhere", float((rise & ~condition).sum()), 0)
    yield equal("counter-example: π_2 after the step", moved[2], 0.0537, 5e-5)


@statement("C4", "Vanishing recovery", Truth.CONDITIONAL, where="appendix B.2, second proposition")
def vanishing_recovery() -> Iterator[Reading]:
    """The recovery of a valid token vanishes with its probability.

    Δz_k = ηCπ_k → 0, but ℓ_k → C(π_y − ‖π‖²): one constant, of either sign, for all of the tail.
    """
    tail = 1e-9
    probs = torch.cat([dist(0.6, 0.3, 0.1) * (1 - 3 * tail), dist(tail, 2 * tail)])
    for error, seen in enumerate((0.140, -0.160, -0.360)):
        force = token_forces(PUSH, probs.log(), probs, error)
        growth = log_growth(probs, force)
        name = f"error = token {error}"
        yield equal(f"{name}: f_k/π_k", force[3] / probs[3], 1.0)
        yield equal(f"{name}: ℓ_k against π_y − ‖π‖²", growth[3], probs[error] - probs.square().sum(), 1e-8)
        yield equal(f"{name}: ℓ_k", growth[3], seen, 5e-4)
        yield equal(f"{name}: ℓ of two tail tokens, difference", growth[3] - growth[4], tolerance=2e-9)


@statement("C5", "The same in a group", Truth.CONDITIONAL, where="section 3.1, appendix B.2")
def in_a_group() -> Iterator[Reading]:
    """Unsampled tokens are suppressed by every success and squeezed by every error.

    if ΣA = 0 at a prefix with r = 1, the force on every logit not sampled there is 0.
    """
    probs = random_probs(1, 40, seeded(14))[0]
    problem = bandit(probs, (torch.arange(40) % 2).double())
    logits = probs.log().expand(300, 1, -1)

    def unsampled(loss: GRPO | APO, advantage: AdvantageEstimator) -> torch.Tensor:
        force = sampled_force(problem, logits, loss, advantage, 8, seeded(15))[:, 0]
        # A tail of 1e-6 and less is sampled at most once in 400 replicates.
        return (force[:, probs < 1e-4] / probs[probs < 1e-4]).abs().median()

    yield equal("|f_k|/π_k of unsampled k, GRPO", unsampled(PUSH, GROUP))
    yield equal("the same, NSR", unsampled(PUSH, NSR), 1.0)
    yield above("the same, APO", unsampled(APO(), GROUP), 0.01)


@statement("C6", "Absorbing state", Truth.FALSE, where="appendix B.2, sampling barrier")
def absorbing_state() -> Iterator[Reading]:
    """Below N·π = 1 a valid path is gone for good.

    at N·π = 1 the chance of no draw is (1 − 1/N)^N; unvisited prefixes are frozen, visited ones are not.
    """
    generator, uniform = seeded(18), constant(1 / 8, 8)
    right = bandit(uniform, torch.ones_like(uniform))
    force = sampled_force(right, uniform.log().expand(100000, 1, -1), PUSH, POLICY_GRADIENT, 8, generator)
    # The force is the mean of e_y − π, which is −π_k at a token k that was not sampled.
    missed = ((force[:, 0, 0] + 1 / 8).abs() < 1e-12).double().mean()
    yield equal("no draw of k in 8 at π_k = 1/8", missed, (1 - 1 / 8) ** 8, 6e-3)
    tree = Tree(ref=random_probs(7, 6, generator), success=(torch.rand(36, generator=generator) < 0.5).double())
    pairs = sampled_force(tree, tree.ref.log().expand(200, -1, -1), PUSH, NSR, 2, generator)
    moved = pairs.abs().amax(2) > 0
    yield equal("prefixes of depth 1 that two completions move: most of 6", float(moved[:, 1:].sum(1).max()), 2.0)
    yield above("smallest |f| on what they move", pairs[moved].abs().min(), 0.0, tolerance=0.0)
