"""The reference policy π_ref: the model before RL, or one that follows the policy at intervals."""

import copy
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from apo_lightning.model.averaging import average
from apo_lightning.model.lora import adapters_off, has_adapters
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference_schedule import ReferenceSchedule
from apo_lightning.types import ReferenceStatistics


class Reference:
    """A copy of the policy without gradients or, with adapters, the policy itself with its adapters switched off.

    Training changes the adapters alone, and the head has none, so without them it is the model before training.

    The schedule says when the copy follows the policy. A copy that is never mixed has rounded matrices: they are those
    that autocast would multiply by. A mixed one stays in float32, and autocast rounds it in every pass.

    Not an `nn.Module`: registered as one, its weights would enter checkpoints, the optimizer and gradient
    synchronisation.
    """

    def __init__(self, policy: Policy, schedule: ReferenceSchedule | None = None) -> None:
        self.schedule = ReferenceSchedule() if schedule is None else schedule
        self._is_copy = not has_adapters(policy.model)
        self.policy = copy.deepcopy(policy).eval().requires_grad_(False) if self._is_copy else policy
        self.policy.is_rounded_when_frozen = not self.schedule.mixes

    @property
    def copies(self) -> list[Policy]:
        """Additional models, which must be sharded like the policy."""
        return [self.policy] if self._is_copy else []

    def to(self, device: torch.device) -> None:
        """Move a copy's weights and round its matrices, unless it is mixed; shards stay where sharding placed them."""
        if self._is_copy and not isinstance(self.policy, FSDPModule):
            self.policy.to(device)
            if self.policy.is_rounded_when_frozen:
                self.policy.round_matrices()

    def after_optimizer_step(self, policy: Policy) -> None:
        """Follow the policy, if the reference is its moving average."""
        if self.schedule.ema_tau is not None:
            self._follow(policy, 1 - self.schedule.ema_tau)

    def after_step(self, policy: Policy, step: int) -> bool:
        """Follow the policy, if the training step (from 1) is due; returns whether the optimizer starts again."""
        weight = self.schedule.policy_weight(step)
        if weight:
            self._follow(policy, weight)
        return bool(weight) and self.schedule.rule == "reset_every"

    def _follow(self, policy: Policy, weight: float | int) -> None:
        """θ_ref ← (1 − weight)·θ_ref + weight·θ."""
        average(dict(self.policy.model.named_parameters()), dict(policy.model.named_parameters()), weight)

    @property
    def changing_weights(self) -> dict[str, Tensor]:
        """The weights themselves (no copies) by name, if the schedule changes them; else nothing."""
        if self.schedule.rule is None:
            return {}
        return {name: parameter.detach() for name, parameter in self.policy.model.named_parameters()}

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
