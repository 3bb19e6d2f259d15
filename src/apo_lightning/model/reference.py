"""The frozen reference policy π_ref: the model before RL, asked only about the tokens that need it."""

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
        """Models kept beside the policy, to be sharded as it is."""
        return [self.policy]

    def to(self, device: torch.device) -> None:
        """Move the weights, matrices rounded; shards lie where sharding put them."""
        if isinstance(self.policy, FSDPModule):
            return
        self.policy.to(device)
        self.policy.round_matrices()

    def reference_mode(self) -> AbstractContextManager[None]:
        """What `self.policy` must run in, to be the reference."""
        return nullcontext()

    @torch.no_grad()
    def score(self, microbatch: Microbatch, anchor_size: int, *, temperature: float) -> ReferenceStatistics:
        """log π_ref and the top-K anchors of the micro-batch's response tokens.

        Args:
            microbatch: what to run, and where to read it off.
            anchor_size: K; 0: no anchors.
            temperature: of the rollout.
        """
        with self.reference_mode():
            return self.policy.as_reference(microbatch, anchor_size, temperature=temperature)

    @torch.no_grad()
    def hidden_states(self, microbatch: Microbatch) -> Float[Tensor, "tokens hidden"]:
        """What the exact KL needs: the reference's last hidden states at the response tokens."""
        with self.reference_mode():
            return self.policy.hidden_states(microbatch)

    @property
    def head_weight(self) -> Float[Tensor, "vocab hidden"]:
        """The reference's own head."""
        return self.policy.head_weight


class AdaptersOff(Reference):
    """The policy itself, asked with its adapters switched off: no second copy of the weights.

    Training moves the adapters alone, and none is at the head, so this is the model that training began with.

    Args:
        policy: with adapters; not copied.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @property
    def copies(self) -> list[Policy]:
        """No copy is kept: the policy is sharded already."""
        return []

    def to(self, device: torch.device) -> None:
        """The policy is there already."""

    def reference_mode(self) -> AbstractContextManager[None]:
        """A context in which the adapters are off."""
        return adapters_off(self.policy.model)


def reference_of(policy: Policy) -> Reference:
    """The policy as it is before training: a frozen copy, or with adapters the policy without them."""
    return AdaptersOff(policy) if has_adapters(policy.model) else Reference(policy)
