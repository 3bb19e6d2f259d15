"""GRPO that leaves a random share of the errors' tokens out: the control of a gate that leaves chosen ones out."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from apo_lightning.common.ranges import Within
from apo_lightning.losses import GRPO, applicable
from apo_lightning.losses.functional import Number
from apo_lightning.types import LossInputs, LossOutput
from apo_methods.losses.anchor_sets import scrambled


@dataclass(frozen=True, kw_only=True)
class DroppedErrors(GRPO):
    """GRPO without the push on a random share of the tokens of A < 0.

        A ← 0 where A < 0 and u < drop_fraction,   u in [0, 1) a hash of the token and of its log π_old

    APO's gate leaves out the errors' tokens whose anchors already hold enough mass (`algo=apo_gate_only`; their share
    is `apo/saturated_fraction`). This control tells whether it matters which tokens are left out, or only how many.

    Like the gate, u depends on the token and its prefix: equal tokens after equal prefixes have one u, unless rounding
    gives them different log π_old. Dropped tokens stay in every denominator. `drop_fraction=0` is GRPO.

    Source: none; a control.

    Metrics: those of GRPO, and `dropped_fraction`, 1 on dropped tokens, 0 on the other tokens of A < 0.

    Attributes:
        drop_fraction: in [0, 1].

    Raises:
        ConfigError: a value outside its range.
    """

    drop_fraction: Annotated[Number, Within("[0, 1]", "such as 0.125")] = 0.125

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """GRPO's loss, with A = 0 on dropped tokens."""
        bits = inputs.old_logprobs.float().view(torch.int32).long()
        is_error, draws = inputs.advantages < 0, scrambled(scrambled(bits) ^ inputs.token_ids)
        dropped = is_error & (draws < int(self.drop_fraction * 2**31))
        output = GRPO.__call__(self, replace(inputs, advantages=inputs.advantages.masked_fill(dropped, 0.0)))
        share = applicable(dropped.to(output.per_token.dtype), is_error)
        return replace(output, metrics={**output.metrics, "dropped_fraction": share})
