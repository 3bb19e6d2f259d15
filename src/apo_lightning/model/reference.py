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
    """A frozen copy of the policy.

    Not an `nn.Module`: registered as one, its weights would enter checkpoints, the optimizer and gradient
    synchronisation.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = copy.deepcopy(policy).eval().requires_grad_(False)

    @property
    def copies(self) -> list[Policy]:
        """Additional models, which must be sharded like the policy."""
        return [self.policy]

    def to(self, device: torch.device) -> None:
        """Move the weights and round the matrices; shards stay where sharding placed them."""
        if isinstance(self.policy, FSDPModule):
            return
        self.policy.to(device)
        self.policy.round_matrices()

    def reference_mode(self) -> AbstractContextManager[None]:
        """Context in which `self.policy` computes the reference."""
        return nullcontext()

    @torch.no_grad()
    def score(self, microbatch: Microbatch, anchor_size: int, *, temperature: float) -> ReferenceStatistics:
        """log π_ref and the top `anchor_size` tokens at the micro-batch's response tokens; 0: no anchors."""
        with self.reference_mode():
            return self.policy.as_reference(microbatch, anchor_size, temperature=temperature)

    @torch.no_grad()
    def hidden_states(self, microbatch: Microbatch) -> Float[Tensor, "tokens hidden"]:
        """The reference's last hidden states at the response tokens, for the exact KL."""
        with self.reference_mode():
            return self.policy.hidden_states(microbatch)

    @property
    def head_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The reference's own head."""
        return self.policy.head_weight


class AdaptersOff(Reference):
    """The policy itself with its adapters switched off, without a second copy of the weights.

    Training changes the adapters alone, and the head has none, so this is the model before training.

    Args:
        policy: with adapters; not copied.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @property
    def copies(self) -> list[Policy]:
        """None: the policy itself is sharded already."""
        return []

    def to(self, device: torch.device) -> None:
        """Do nothing: the policy is there already."""

    def reference_mode(self) -> AbstractContextManager[None]:
        """Context in which the adapters are off."""
        return adapters_off(self.policy.model)


def reference_of(policy: Policy) -> Reference:
    """The policy before training: a frozen copy or, with adapters, the policy without them."""
    return AdaptersOff(policy) if has_adapters(policy.model) else Reference(policy)
