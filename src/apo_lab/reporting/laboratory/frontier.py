"""The best pass@k at each pass@1 that a policy can have on locks, where it sees only the class of a problem."""

from functools import cache
from importlib import resources

import torch
from jaxtyping import Bool, Int
from omegaconf import OmegaConf
from torch import Tensor

from apo_lab.editions.protocol import World
from apo_lab.puzzles.locks import Locks
from apo_lab.statistics.exact import exact_pass_at_k

FAMILY = "locks"


@cache  # several questions have the same worlds
def locks_frontier(worlds: tuple[World, ...], k: int) -> list[tuple[float, float]]:
    """`frontier` of the held-out problems of these worlds together, a policy for each."""
    held_out = [_held_out(world) for world in worlds]
    group = [(place, problem[0]) for place, (problems, _) in enumerate(held_out) for problem in problems]
    groups = sorted(set(group))
    valid = torch.cat([valid for _, valid in held_out])
    return frontier(valid, torch.tensor([groups.index(each) for each in group]), k, num_points=12, num_steps=150)


def best_single_strategy(world: World) -> float:
    """pass@1, over the held-out problems, of a policy that answers each of them with the strategy that opens most."""
    return _held_out(world)[1].double().mean(0).max().item()


@cache
def _held_out(world: World) -> tuple[list[str], Bool[Tensor, "problems strategies"]]:
    """The held-out problems of locks, and which strategies open each."""
    defaults = OmegaConf.create((resources.files("apo_lab") / "configs/data/locks.yaml").read_text())
    own = [override.removeprefix("data.") for override in world.run if override.startswith("data.")]
    settings = OmegaConf.merge(defaults, OmegaConf.from_dotlist(own))
    puzzle = Locks(secret=settings.puzzle.secret)
    problems = puzzle.problems(settings.num_validation, settings.seed, held_out=True)
    opened = [[puzzle.opens(problem, strategy) for strategy in range(len(puzzle.strategies))] for problem in problems]
    return problems, torch.tensor(opened)


def frontier(
    has_valid: Bool[Tensor, "problems strategies"],
    group: Int[Tensor, "problems"],
    k: int,
    *,
    num_points: int = 24,
    num_steps: int = 300,
) -> list[tuple[float, float]]:
    """The best pass@k at each pass@1, over policies that choose a strategy by the problem's group and carry it out.

    Maximises (1 − w)·pass@1 + w·pass@k over tables of logits, one row a group, for `num_points` values of w, each by
    `num_steps` of Adam from the one before. The ends are the best pass@1 and the best pass@k. `has_valid`: where a
    strategy opens a problem; `group`: what such a policy sees of a problem. Returns points, pass@1 falling.
    """
    valid = has_valid.double()
    logits = torch.zeros(int(group.max()) + 1, valid.shape[1], dtype=torch.float64, requires_grad=True)
    points = []
    for w in torch.linspace(0, 1, num_points, dtype=torch.float64).tolist():
        optimizer = torch.optim.Adam([logits], lr=0.1)
        for _ in range(num_steps):
            ones, many = _reached(logits, group, valid, k)
            optimizer.zero_grad()
            (-(1 - w) * ones - w * many).backward()
            optimizer.step()
        ones, many = _reached(logits.detach(), group, valid, k)
        points.append((ones.item(), many.item()))
    return points


def _reached(logits: Tensor, group: Tensor, valid: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """pass@1 and pass@k of a table of logits."""
    success = (logits.softmax(1)[group] * valid).sum(1).clamp(max=1 - 1e-12)
    return success.mean(), exact_pass_at_k(success, k).mean()
