"""What an error, or a success, does to the tokens that were not sampled."""

import math
from collections.abc import Sequence

import torch

from apo_lab.theory.draws import dist, random_probs, random_tokens, seeded
from apo_lab.theory.expectations import sampled_force
from apo_lab.theory.flow import step
from apo_lab.theory.forces import log_growth, token_force, token_forces
from apo_lab.theory.problems import Tree, bandit
from apo_lab.theory.statements.record import Reading, Statement, Verdict
from apo_lightning.advantages import GroupNormalized, SignedReward
from apo_lightning.losses import APO, GRPO

PUSH = GRPO()


def squeezing_gradient() -> Sequence[Reading]:
    """Of the probability, by autograd; of the log-probability, through the loss."""
    generator = seeded(11)
    probs = random_probs(200, 8, generator)
    logits = probs.log().requires_grad_()
    (of_probability,) = torch.autograd.grad(logits.softmax(1)[:, 0].sum(), logits)
    error = torch.zeros(200, dtype=torch.long)
    of_log = token_forces(PUSH, probs.log(), probs, error, -torch.ones(200, dtype=torch.float64))
    others, first = probs[:, 1:], probs[:, :1]
    printed = (of_log[:, 1:] / (first * others)).min().item()
    return [
        Reading(
            what="−∂π_y/∂z_k against π_y·π_k: largest difference",
            measured=(-of_probability[:, 1:] - first * others).abs().max().item(),
            predicted=0.0,
        ),
        Reading(
            what="−∂log π_y/∂z_k against π_k: largest difference",
            measured=(of_log[:, 1:] - others).abs().max().item(),
            predicted=0.0,
        ),
        Reading(what="force over the printed π_y·π_k: smallest", measured=printed, predicted=1.0, relation=">"),
    ]


def released_mass() -> Sequence[Reading]:
    """Where the mass of an error goes."""
    generator = seeded(12)
    probs = random_probs(2000, 6, generator)
    y = random_tokens(probs, generator)
    force = token_forces(PUSH, probs.log(), probs, y, -torch.ones(2000, dtype=torch.float64))
    after = step(probs.log(), force, 3.0).softmax(1)
    identity = 3.0 * force - (probs * (3.0 * force).exp()).sum(1, keepdim=True).log()
    growth = log_growth(probs, force)
    first_order = probs + probs.gather(1, y[:, None]) - probs.square().sum(1, keepdim=True)
    others = torch.arange(6) != y[:, None]
    is_leader = probs.argmax(1) == y
    lowest = torch.where(others, growth, torch.inf)[is_leader].min().item()
    example = dist(0.90, 0.05, 0.04, 0.01)
    moved = step(example.log(), token_force(PUSH, example, example, 1), 0.5).softmax(0)
    share = ((moved[0] - example[0]) / (example[1] - moved[1])).item()
    readings = [
        Reading(
            what="log π'/π against ηf − log⟨π, e^ηf⟩, η = 3: largest difference",
            measured=((after / probs).log() - identity).abs().max().item(),
            predicted=0.0,
        ),
        Reading(
            what="ℓ_k against π_k + π_y − ‖π‖²: largest difference",
            measured=torch.where(others, growth - first_order, 0.0).abs().max().item(),
            predicted=0.0,
        ),
        Reading(what="y the leader: smallest ℓ of another", measured=lowest, predicted=0.0, relation=">"),
    ]
    for token, value in enumerate((0.945, 0.021, 0.027, 0.0067)):
        readings.append(
            Reading(what=f"counter-example: π'_{token}", measured=moved[token].item(), predicted=value, tolerance=5e-4)
        )
    proportional = 0.90 / 0.95
    return [
        *readings,
        Reading(what="leader's share of what y lost", measured=share, predicted=1.55, tolerance=5e-3),
        Reading(what="that share beside proportional sharing's", measured=share, predicted=proportional, relation=">"),
    ]


def passive_suppression() -> Sequence[Reading]:
    """A success on another token."""
    generator = seeded(13)
    probs = random_probs(4000, 5, generator)
    y = random_tokens(probs, generator)
    size = torch.rand(4000, 1, generator=generator, dtype=torch.float64) * 5
    force = token_forces(PUSH, probs.log(), probs, y, torch.ones(4000, dtype=torch.float64))
    rise = (probs.log() + size * force).softmax(1) > probs * (1 + 1e-12)
    others = torch.arange(5) != y[:, None]
    condition = probs + probs.gather(1, y[:, None]) >= probs.square().sum(1, keepdim=True)
    example = dist(0.90, 0.05, 0.05)
    moved = step(example.log(), token_force(PUSH, example, example, 1, advantage=1.0), 0.1).softmax(0)
    logit = (force + probs)[others].abs().max().item()
    return [
        Reading(what="Δz_k against −ηAπ_k: largest difference", measured=logit, predicted=0.0),
        Reading(what="rises where π_k + π_y ≥ ‖π‖²", measured=float((rise & others & condition).sum()), predicted=0.0),
        Reading(what="rises elsewhere", measured=float((rise & others & ~condition).sum()), predicted=0, relation=">"),
        Reading(what="counter-example: π_2 after the step", measured=moved[2].item(), predicted=0.0537, tolerance=5e-5),
        Reading(what="counter-example: π_2 beside .05", measured=moved[2].item(), predicted=0.05, relation=">"),
    ]


def vanishing_recovery() -> Sequence[Reading]:
    """Logit and relative growth of two tail tokens beside (.6, .3, .1)."""
    readings = []
    tail = 1e-9
    probs = torch.cat([dist(0.6, 0.3, 0.1) * (1 - 3 * tail), dist(tail, 2 * tail)])
    for error, seen in enumerate((0.140, -0.160, -0.360)):
        force = token_force(PUSH, probs, probs, error)
        growth = log_growth(probs, force)
        limit = (probs[error] - probs.square().sum()).item()
        name = f"error = token {error}"
        readings += [
            Reading(what=f"{name}: f_k/π_k", measured=(force[3] / probs[3]).item(), predicted=1.0),
            Reading(what=f"{name}: ℓ_k against π_y − ‖π‖²", measured=growth[3].item(), predicted=limit, tolerance=1e-8),
            Reading(what=f"{name}: ℓ_k", measured=growth[3].item(), predicted=seen, tolerance=5e-4),
            Reading(
                what=f"{name}: ℓ of two tail tokens, difference",
                measured=(growth[3] - growth[4]).item(),
                predicted=0.0,
                tolerance=2e-9,
            ),
        ]
    return readings


def in_a_group() -> Sequence[Reading]:
    """Unsampled logits of a prefix that all eight completions share, and of prefixes that they do not."""
    probs = random_probs(1, 40, seeded(14))[0]
    problem = bandit(probs, (torch.arange(40) % 2).double())
    logits = probs.log().expand(300, 1, -1)

    def unsampled(loss: GRPO | APO, advantage: GroupNormalized | SignedReward) -> float:
        force = sampled_force(problem, logits, loss, advantage, 8, seeded(15))[:, 0]
        # A tail of 1e-6 and less is drawn once in 400 replicates at most.
        return (force[:, probs < 1e-4] / probs[probs < 1e-4]).abs().median().item()

    group, signed = GroupNormalized(), SignedReward()
    shares = _shares_of_uneven_nodes()
    return [
        Reading(what="|f_k|/π_k of unsampled k, GRPO", measured=unsampled(PUSH, group), predicted=0.0),
        Reading(what="the same, NSR", measured=unsampled(PUSH, signed), predicted=1.0),
        Reading(what="the same, APO", measured=unsampled(APO(), group), predicted=0.01, relation=">"),
        Reading(
            what="depth-1 nodes visited by a group of 8 with ΣA ≠ 0", measured=shares, predicted=0.96, tolerance=0.04
        ),
    ]


def _shares_of_uneven_nodes() -> float:
    """Of the visited children of the root, V = 6, those whose advantages do not sum to 0."""
    generator = seeded(16)
    # A seventh token that is never drawn feels ΣA alone: its force is −π·ΣA/16.
    ref = torch.cat([random_probs(8, 6, generator, 1.0), torch.full((8, 1), 1e-12, dtype=torch.float64)], dim=1)
    success = (torch.rand(49, generator=generator) < 0.3).double()
    tree = Tree(ref=ref / ref.sum(1, keepdim=True), success=success)
    logits = tree.ref.log().expand(1000, -1, -1)

    def sums(advantage: GroupNormalized | SignedReward) -> torch.Tensor:
        force = sampled_force(tree, logits, PUSH, advantage, 8, seeded(17))
        return (force / tree.ref)[..., 6].abs() > 1e-9

    uneven = sums(GroupNormalized())
    # The same completions, rewarded whatever they are: what was visited has a sum above 0.
    every = SignedReward(positive_weight=1.0, negative_weight=1.0)
    always = Tree(ref=tree.ref, success=torch.ones_like(success))
    visited = (sampled_force(always, logits, PUSH, every, 8, seeded(17)) / tree.ref)[..., 6].abs() > 1e-9
    informative = uneven[:, 1:].any(1, keepdim=True)
    return (uneven & visited)[:, 1:7].sum().item() / (visited & informative)[:, 1:7].sum().item()


def absorbing_state() -> Sequence[Reading]:
    """The chance of not being drawn, and prefixes that nobody visited."""
    generator = seeded(18)
    uniform = torch.full((8,), 1 / 8, dtype=torch.float64)
    right, reward = bandit(uniform, torch.ones_like(uniform)), SignedReward(positive_weight=1.0)
    force = sampled_force(right, uniform.log().expand(100000, 1, -1), PUSH, reward, 8, generator)
    # The mean of e_y − π: where k was not drawn, −π_k is left.
    missed = ((force[:, 0, 0] + 1 / 8).abs() < 1e-12).double().mean().item()
    tree = Tree(ref=random_probs(7, 6, generator), success=(torch.rand(36, generator=generator) < 0.5).double())
    pairs = sampled_force(tree, tree.ref.log().expand(200, -1, -1), PUSH, SignedReward(), 2, generator)
    moved = pairs.abs().amax(2) > 0
    smallest = pairs[moved].abs().min().item()
    most = float(moved[:, 1:].sum(1).max())
    return [
        Reading(what="no draw of k in 8 at π_k = 1/8", measured=missed, predicted=(1 - 1 / 8) ** 8, tolerance=6e-3),
        Reading(what="the same, against 1/e", measured=missed, predicted=math.exp(-1), relation="<"),
        Reading(what="prefixes of depth 1 that two completions move: most of 6", measured=most, predicted=2.0),
        Reading(what="smallest |f| on what they move", measured=smallest, predicted=0.0, tolerance=0.0, relation=">"),
    ]


STATEMENTS = (
    Statement(
        key="C1",
        title="Squeezing gradient",
        claim="Pushing an error down raises the logit of k by π_y·π_k; the force ends with the error.",
        where="Eq. 2; appendix B.3",
        formula="−∂π_y/∂z_k = π_y·π_k, but −∂log π_y/∂z_k = π_k: the gradient that is used has no factor π_y",
        verdict=Verdict.EXACT,
        check=squeezing_gradient,
    ),
    Statement(
        key="C2",
        title="Released mass",
        claim="An error's mass goes to the others in proportion to their mass.",
        where="section 2.2, appendix B.2",
        formula="log π'_k/π_k = ηf_k − log⟨π, e^ηf⟩; ℓ_k = π_k + π_y − ‖π‖²: k loses iff π_k < ‖π‖² − π_y",
        verdict=Verdict.FALSE,
        check=released_mass,
        figure="recovery",
    ),
    Statement(
        key="C3",
        title="Passive suppression",
        claim="Rewarding a token strictly lowers the probability of every other.",
        where="appendix B.2, first proposition",
        formula="Δz_k = −ηAπ_k always; π_k falls for every step size where π_k + π_y ≥ ‖π‖², and may rise elsewhere",
        verdict=Verdict.CONDITIONAL,
        check=passive_suppression,
    ),
    Statement(
        key="C4",
        title="Vanishing recovery",
        claim="The recovery of a valid token vanishes with its probability.",
        where="appendix B.2, second proposition",
        formula="Δz_k = ηCπ_k → 0, but ℓ_k → C(π_y − ‖π‖²): one constant, of either sign, for all of the tail",
        verdict=Verdict.CONDITIONAL,
        check=vanishing_recovery,
    ),
    Statement(
        key="C5",
        title="The same in a group",
        claim="Unsampled tokens are suppressed by every success and squeezed by every error.",
        where="section 3.1, appendix B.2",
        formula="if ΣA = 0 at a prefix with r = 1, the force on every logit not sampled there is 0",
        verdict=Verdict.CONDITIONAL,
        check=in_a_group,
    ),
    Statement(
        key="C6",
        title="Absorbing state",
        claim="Below N·π = 1 a valid path is gone for good.",
        where="appendix B.2, sampling barrier",
        formula="at N·π = 1 the chance of no draw is (1 − 1/N)^N; unvisited prefixes are frozen, visited ones are not",
        verdict=Verdict.FALSE,
        check=absorbing_state,
    ),
)
