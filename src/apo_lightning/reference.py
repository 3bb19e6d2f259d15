"""The frozen reference policy π_ref: the model before RL, asked only about the tokens that need it."""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from apo_lightning.packing import Microbatch
from apo_lightning.policy import Policy
from apo_lightning.step import StepTable


class Reference:
    """A frozen copy of the policy.

    Not an `nn.Module`: registered as one, its weights would enter checkpoints, the optimizer and gradient
    synchronisation.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = copy.deepcopy(policy).eval().requires_grad_(False)

    def to(self, device: torch.device) -> None:
        """Move the weights; shards lie where sharding put them."""
        if not isinstance(self.policy, FSDPModule):
            self.policy.to(device)

    @torch.no_grad()
    def score(
        self,
        table: StepTable,
        microbatches: Sequence[Microbatch],
        wanted: Bool[Tensor, "tokens"],
        anchor_size: int,
        *,
        temperature: float,
    ) -> None:
        """Write log π_ref and the top-K anchors of the wanted tokens into the table; all others stay absent.

        Args:
            table: of the step, prepared for at least as many anchors.
            microbatches: the completions that have a wanted token; the others need not run at all.
            wanted: the head sees only these.
            anchor_size: how many anchors.
            temperature: of the rollout.
        """
        for microbatch in microbatches:
            part = microbatch.only(wanted[microbatch.token_index])
            table.record_reference(part, self.policy.as_reference(part, anchor_size, temperature=temperature))

    @torch.no_grad()
    def hidden_states(self, microbatch: Microbatch) -> Float[Tensor, "tokens hidden"]:
        """What the exact KL needs: the reference's last hidden states at the response tokens."""
        with self.policy.autocast():
            return self.policy.hidden_states(microbatch)

    @property
    def head_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The reference's own head."""
        return self.policy.head_weight
