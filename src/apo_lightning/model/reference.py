"""The frozen reference policy π_ref: the model before RL."""

import copy
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from apo_lightning.model.lora import adapters_off, has_adapters
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.policy import Policy
from apo_lightning.types import ReferenceStatistics


class Reference:
    """A frozen copy of the policy or, with adapters, the policy itself with its adapters switched off.

    Training changes the adapters alone, and the head has none, so without them it is the model before training.

    Not an `nn.Module`: registered as one, its weights would enter checkpoints, the optimizer and gradient
    synchronisation.
    """

    def __init__(self, policy: Policy) -> None:
        self._is_copy = not has_adapters(policy.model)
        self.policy = copy.deepcopy(policy).eval().requires_grad_(False) if self._is_copy else policy

    @property
    def copies(self) -> list[Policy]:
        """Additional models, which must be sharded like the policy."""
        return [self.policy] if self._is_copy else []

    def to(self, device: torch.device) -> None:
        """Move a copy's weights and round its matrices; shards stay where sharding placed them."""
        if self._is_copy and not isinstance(self.policy, FSDPModule):
            self.policy.to(device)
            self.policy.round_matrices()

    def _as_reference(self) -> AbstractContextManager[None]:
        """Context in which `self.policy` computes the reference."""
        return nullcontext() if self._is_copy else adapters_off(self.policy.model)

    @torch.no_grad()
    def score(self, microbatch: Microbatch, anchor_size: int, *, temperature: float) -> ReferenceStatistics:
        """log π_ref and the top `anchor_size` tokens at the micro-batch's response tokens; 0: no anchors."""
        with self._as_reference():
            return self.policy.as_reference(microbatch, anchor_size, temperature=temperature)

    @torch.no_grad()
    def hidden_states(self, microbatch: Microbatch) -> Float[Tensor, "tokens hidden"]:
        """The reference's last hidden states at the response tokens, for the exact KL."""
        with self._as_reference():
            return self.policy.hidden_states(microbatch)

    @property
    def head_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The reference's own head."""
        return self.policy.head_weight
