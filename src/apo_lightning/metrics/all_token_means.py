"""Means over all response tokens of a step, of numbers that are known for some completions only."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torchmetrics import Metric

from apo_lightning.types import StepTokens

FIT_FROM = 8
"""The fewest completions from which the three coefficients of a control variate are fitted."""
UNFITTED = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0))
"""Coefficients for fewer completions: entropy ≈ surprisal, max-prob ≈ probability of the sampled token."""


class AllTokenMeansResult(NamedTuple):
    """Entropy [nats] and max-prob, in this order."""

    means: Float[Tensor, "2"]
    """NaN where none of the other completions was drawn, or where a scored value is not finite."""
    standard_errors: Float[Tensor, "2"]
    """Standard errors from the draw; 0 where every completion was scored, NaN where only one was drawn."""
    num_nonfinite: int
    """Totals of scored completions that are NaN or infinite."""


class AllTokenMeans(Metric):
    """Entropy and max-prob of all tokens, from the completions that must be scored and a random sample of the others.

    With U the required completions, t_b the total over a completion's tokens, T the tokens of the step, and m of the M
    others drawn:

        μ̂ = [Σ_U t_b + Σ_{others} a_b + M/m·Σ_{drawn} (t_b − a_b)] / T
        se² = M²·(1 − m/M)·s²/(m·T²),   s² the variance of t_b − a_b over the drawn

    The control variate a_b is known for every completion without a forward, and is fixed before the draw, so μ̂ is
    unbiased for any a_b: a linear function of the completion's length, surprisal −Σ log π_rollout(y) and Σ
    π_rollout(y), by least squares on U. With all others drawn μ̂ is the mean itself.

    Source: the difference estimator of Särndal, Swensson and Wretman 1992, section 6.3.

    All state is sums, so the result does not depend on which rank scored a completion.

    Example:
        One completion is required. The two others have equal control variates; the one with an entropy of 1 is drawn,
        the one with 3 is not.

        >>> totals = torch.tensor([[1, 0.5, 0.6, 0.4, 0.7], [1, 0.5, 0.6, 1.0, 0.5], [1, 0.5, 0.6, math.nan, math.nan]])
        >>> metric = AllTokenMeans()
        >>> metric.update(totals.double(), torch.tensor([1, 0, 0]).bool(), torch.tensor([0, 1, 0]).bool())
        >>> round(metric.compute().means[0].item(), 6)  # (0.4 + 2·1.0)/3
        0.8
    """

    is_differentiable = False
    full_state_update = False

    sums: Float[Tensor, "77"]
    """Second moments of (1, tokens, surprisal, probability, entropy, max-prob) over required completions and over drawn
    ones, so that counts and totals are their first rows; Σ of the first four over all; values that are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(77, dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self,
        totals: Float[Tensor, "completions 5"],
        required: Bool[Tensor, "completions"],
        drawn: Bool[Tensor, "completions"],
    ) -> None:
        """Add completions: `completion_totals`, of which the last two columns are read where required or drawn."""
        rows = torch.cat([torch.ones_like(totals[:, :1]), totals], dim=1)
        moments = [(rows[chosen].T @ rows[chosen]).flatten() for chosen in (required, drawn)]
        num_nonfinite = (~totals[required | drawn, 3:].isfinite()).sum().double()
        self.sums += torch.cat([*moments, rows[:, :4].sum(0), num_nonfinite[None]]).to(self.sums.device)

    def compute(self) -> AllTokenMeansResult:
        """The estimates so far, over all ranks; on the CPU."""
        required, drawn, controls, num_nonfinite = self.sums.cpu().split([36, 36, 4, 1])
        required, drawn = required.view(6, 6), drawn.view(6, 6)
        num_tokens, num_faults = controls[1], int(num_nonfinite)
        known = required[0, 4:] + drawn[0, 4:]
        num_others, num_drawn = controls[0] - required[0, 0], drawn[0, 0]
        if num_drawn == num_others:
            return AllTokenMeansResult(known / num_tokens, 0 * known, num_faults)
        if num_drawn == 0:
            unknown = torch.full_like(known, math.nan)
            return AllTokenMeansResult(unknown, unknown, num_faults)
        coefficients = _coefficients(required)
        control = (controls - required[0, :4])[1:] @ coefficients
        differences, squares = _differences(drawn, coefficients)
        total = required[0, 4:] + control + num_others / num_drawn * differences
        freedom = torch.where(num_drawn > 1, num_drawn - 1, math.nan)
        variance = (squares - differences.square() / num_drawn).clamp(min=0) / freedom
        error = num_others * ((1 - num_drawn / num_others) * variance / num_drawn).sqrt()
        return AllTokenMeansResult(total / num_tokens, error / num_tokens, num_faults)


def _coefficients(required: Float[Tensor, "6 6"]) -> Float[Tensor, "3 2"]:
    """Regression coefficients of the control variates."""
    if required[0, 0] < FIT_FROM or not required.isfinite().all():
        return torch.tensor(UNFITTED, dtype=torch.float64)
    # Where all completions are equal, coefficients are not determined: the smallest are taken.
    return torch.linalg.pinv(required[1:4, 1:4], rtol=1e-10, hermitian=True) @ required[1:4, 4:]


def _differences(
    drawn: Float[Tensor, "6 6"], coefficients: Float[Tensor, "3 2"]
) -> tuple[Float[Tensor, "2"], Float[Tensor, "2"]]:
    """Σ d_b and Σ d_b² over the drawn, d_b = t_b − a_b."""
    weights = torch.cat([-coefficients, torch.eye(2, dtype=torch.float64)])
    return drawn[0, 1:] @ weights, (weights * (drawn[1:, 1:] @ weights)).sum(0)


def completion_totals(tokens: StepTokens) -> Float[Tensor, "completions 5"]:
    """Tokens, surprisal, sampled probability, entropy and max-prob of each completion, summed over its tokens.

    On the CPU, where sums are taken in one order: the same step gives the same bits.
    """
    columns = tokens.rollout_logprobs, tokens.entropy, tokens.max_prob, tokens.sequence_ids
    logprobs, entropy, max_prob, owner = torch.stack([column.double() for column in columns]).cpu()
    values = torch.stack([torch.ones_like(logprobs), -logprobs, logprobs.exp(), entropy, max_prob], dim=1)
    return values.new_zeros(len(tokens.required), 5).index_add_(0, owner.long(), values)
