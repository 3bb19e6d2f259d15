"""Whether correct completions leave the reference's K likeliest tokens: a direct test of "practically unreachable"."""

import math

import torch

from apo_lightning.distributed.gathering import from_all_ranks, items_of_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.types import Needs, StepOutput
from apo_methods.diagnostics.anchors import AnchorDiagnostic
from apo_methods.statistics.reachability import NEVER, first_exits, is_outside_support, survival

LENGTHS = (16, 64, 256)
"""Tokens at which `reach/correct_inside@l` is logged."""


class Reachability(AnchorDiagnostic):
    """Logs `reach/…`: the share of correct completions with a token outside T_K, the reference's K likeliest.

    A completion that was cut at the maximum length does not count as correct, whatever its verdict. At the first step
    the policy is the reference and the share is P(a token outside T_K | correct); later it shows drift. APO does not
    forbid tokens outside T_K: reward raises them as in GRPO.

    Shares of whole completions depend on their lengths; `reach/correct_inside@l`, over the first l tokens, does less.

    Source: *Anchored Policy Optimization*, the definition of the safe manifold T_K.

    Args:
        anchor_size: K; None: the loss's own, or the paper's 8 under a loss without anchors.
        every_n_steps: measure at multiples of this step; each costs a forward of reference and policy over all tokens,
            which is shared with a distribution monitor that measures at the same step.
    """

    def __init__(self, anchor_size: int | None = None, every_n_steps: int = 10) -> None:
        super().__init__("reachability", anchor_size, every_n_steps)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Choose K, and ask for so many anchors."""
        super().prepare(loss)
        self.needs = Needs(anchor_size=self.anchor_size)

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Measure this step's correct completions of all ranks."""
        tokens = step.tokens
        if tokens.anchor is None:
            raise ConfigError("reachability found no anchors of the reference in its step: use ~callbacks.reachability")
        outside = is_outside_support(tokens.token_ids, tokens.anchor.token_ids[:, : self.anchor_size]).cpu()
        owners = tokens.sequence_ids.cpu()
        ended = torch.tensor([completion.finish_reason == "stop" for completion in step.rollouts.completions])
        counted = step.rollouts.is_correct.flatten() & ended
        exits = first_exits(outside, owners, len(counted))[counted]
        of_counted = counted[owners]
        all_exits = torch.tensor(items_of_all_ranks(exits.tolist()), dtype=torch.long)
        inside = zip(LENGTHS, survival(all_exits, LENGTHS), strict=True)
        of_ranks = from_all_ranks((int((outside & of_counted).sum()), int(of_counted.sum())))
        num_outside, num_tokens = (sum(column) for column in zip(*of_ranks, strict=True))
        return {
            "reach/num_correct": float(len(all_exits)),
            "reach/correct_outside": float((all_exits < NEVER).double().mean()),
            "reach/correct_outside_tokens": num_outside / num_tokens if num_tokens else math.nan,
            **{f"reach/correct_inside@{length}": share for length, share in inside},
        }
