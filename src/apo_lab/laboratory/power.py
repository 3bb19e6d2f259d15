"""The power of an edition's questions, computed before its first run: how often a late fall of pass@64 is found."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.editions.protocol import Protocol
from apo_lab.statistics.cliffs import Cliff, SimulatedWorld, simulated_run
from apo_lab.statistics.passage import passage_leave_one_block_out
from apo_lab.statistics.paths import BlockValues, last_leave_one_block_out, leave_one_block_out
from apo_lab.statistics.verdicts import ArmScores, Outcome, compare, decide, pseudo_values
from apo_lightning.errors import ConfigError

NUM_STUDIES, NUM_PROBLEMS, K = 100, 512, 64
BASE, LEVEL = 0.13, 0.36
"""pass@1 of the simulated base model, and L*."""
AT_CLIFF = BASE + 0.85 * (LEVEL - BASE)
"""Where half of the lost probability is gone; half of the fall of pass@64 is then at 90 % of the levels up to L*."""
KEPT_LOSS = 0.10
"""Share of the problems that the better method loses too: APO and a KL penalty lose as much on locks."""


def check_power(protocol: Protocol) -> None:
    """Refuse an edition whose endpoints would miss what it is registered to find.

    Raises:
        ConfigError: a question finds a fall of the stated size in fewer studies than the edition states.
    """
    if (stated := protocol.power) is None:
        return
    for question in protocol.questions:
        seeds = [len(protocol.stage(question.stage).seeds[world]) for world in question.worlds]
        found = power(question.endpoint, seeds, stated.difference, family=len(question.pairs))
        if found < stated.share:
            raise ConfigError(
                f"edition {protocol.name}, question {question.key}: where methods differ by "
                f"{100 * stated.difference:.0f} points of pass@64 in the last fifth of the levels, endpoint "
                f"'{question.endpoint}' finds it in {100 * found:.0f} % of simulated studies, and the edition states "
                f"{100 * stated.share:.0f} %: take endpoint: passage, fewer pairs or more seeds"
            )


def power(
    endpoint: str, seeds: Sequence[int], difference: float, *, family: int, num_studies: int = NUM_STUDIES
) -> float:
    """Share of simulated studies in which the method that keeps pass@64 is found to be `higher`.

    Both methods have the same path of pass@1. In the last fifth of the levels up to L* the first loses `difference`
    more of the problems than the second, which loses a tenth. The random numbers are the same at every call.

    Args:
        endpoint: one of `protocol.ENDPOINTS`.
        seeds: of each method in each world, compared as one.
        difference: of pass@64, in (0, 1).
        family: comparisons of the question; the p-values of the others are 1.
        num_studies: simulated.
    """
    rng = np.random.default_rng(0)
    cliffs = [Cliff(middle=AT_CLIFF, share=share) for share in (KEPT_LOSS + difference, KEPT_LOSS)]
    flat = ArmScores(name="", tables={"": torch.zeros(1, 2)})
    others = [compare(flat, flat)] * (family - 1)
    outcomes = []
    for _ in range(num_studies):
        worlds = [SimulatedWorld.draw(NUM_PROBLEMS, rng) for _ in seeds]
        arms = [
            ArmScores(
                name="",
                tables={
                    str(place): scores(endpoint, [simulated_run(world, cliff, rng) for _ in range(count)])
                    for place, (world, count) in enumerate(zip(worlds, seeds, strict=True))
                },
            )
            for cliff in cliffs
        ]
        if all(len(table) for arm in arms for table in arm.tables.values()):
            outcomes.append(decide([compare(*arms), *others])[0].outcome)
    return outcomes.count(Outcome.HIGHER) / num_studies


def scores(endpoint: str, runs: Sequence[Float[Tensor, "points problems"]]) -> Float[Tensor, "_ blocks"]:
    """`pseudo_values` of an endpoint of simulated runs; those that have none are left out."""
    found = [each for each in (_endpoint(endpoint, run) for run in runs) if each is not None]
    if not found:
        return torch.zeros(0, 1, dtype=torch.float64)
    values = torch.tensor([each.value for each in found], dtype=torch.float64)
    return pseudo_values(values, torch.stack([each.without for each in found]))


def _endpoint(endpoint: str, success: Float[Tensor, "points problems"]) -> BlockValues | None:
    if endpoint == "last":
        return last_leave_one_block_out(success, K)
    measure = passage_leave_one_block_out if endpoint == "passage" else leave_one_block_out
    return measure(success, K, LEVEL)
