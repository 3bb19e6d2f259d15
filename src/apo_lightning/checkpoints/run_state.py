"""The state of a run: its large tensors by name, and everything else as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.distributed.gathering import Ranks
from apo_lightning.model.policy import Policy
from apo_lightning.step.part import Part
from apo_lightning.step.update_record import NonfiniteSteps


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What a checkpoint saves, and restores in place."""

    policy: Policy
    parts: Sequence[Part]
    optimizer: Optimizer | None
    """None before training."""
    schedule: LRScheduler | None
    ranks: Ranks
    nonfinite: NonfiniteSteps
    policy_version: int
    validated_step: int | None
    """Finished rollouts at the last validation pass; None if there was none."""

    @property
    def step(self) -> int:
        """Finished rollouts."""
        return self.ranks.trainer.global_step

    @property
    def optimizers(self) -> Mapping[str, tuple[Mapping[str, torch.nn.Parameter], Optimizer]]:
        """The policy's parameters with their optimizer, and those of the parts; by the prefix of their names."""
        assert self.optimizer is not None
        found: dict[str, tuple[Mapping[str, torch.nn.Parameter], Optimizer]] = {
            "optimizer": (trained_parameters(self.policy), self.optimizer)
        }
        for part in self.parts:
            found |= part.optimizers
        return found

    @property
    def own_tensors(self) -> dict[str, Tensor]:
        """The tensors of all parts (no copies)."""
        return {name: tensor for part in self.parts for name, tensor in part.tensors.items()}

    @property
    def callbacks(self) -> Sequence[Any]:
        """The trainer's."""
        return self.ranks.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]


def trained_parameters(policy: Policy) -> dict[str, torch.nn.Parameter]:
    """The trained parameters by Hugging Face name; frozen ones are loaded with the model."""
    return {name: p for name, p in policy.model.named_parameters() if p.requires_grad}


def policy_tensors(policy: Policy) -> dict[str, Tensor]:
    """The trained weights themselves (no copies), unsharded or sharded."""
    return {f"policy.{name}": parameter.detach() for name, parameter in trained_parameters(policy).items()}


def optimizer_tensors(run: RunState) -> dict[str, Tensor]:
    """The state of the optimizers that has one value per element of a parameter."""
    return {
        f"{prefix}.{name}.{key}": value
        for prefix, (parameters, optimizer) in run.optimizers.items()
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.dim() > 0
    }


def new_optimizer_tensors(run: RunState, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Allocate the optimizer tensors that a checkpoint contains, sharded like their parameters."""
    for part, (parameters, optimizer) in run.optimizers.items():
        for name, parameter in parameters.items():
            prefix = f"{part}.{name}."
            for key in (full.removeprefix(prefix) for full in shapes if full.startswith(prefix)):
                is_alike = shapes[prefix + key] == tuple(parameter.shape)
                buffer = torch.zeros_like(parameter) if is_alike else torch.zeros(shapes[prefix + key])
                optimizer.state[parameter][key] = buffer.detach()
    return optimizer_tensors(run)


def shared_state(run: RunState) -> dict[str, Any]:
    """The state that is equal on all ranks."""
    assert run.schedule is not None
    optimizers: dict[str, Any] = {}
    for part, (parameters, optimizer) in run.optimizers.items():
        names = {id(parameter): name for name, parameter in parameters.items()}
        optimizers[f"{part}_groups"] = [
            {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        optimizers[f"{part}_scalars"] = {
            names[id(parameter)]: {k: v for k, v in state.items() if not (isinstance(v, Tensor) and v.dim() > 0)}
            for parameter, state in optimizer.state.items()
        }
    return {
        **optimizers,
        "step": run.step,
        "policy_version": run.policy_version,
        "parts": {part.name: part.state_dict() for part in run.parts},
        "num_nonfinite_in_a_row": run.nonfinite.num_in_a_row,
        "schedule": run.schedule.state_dict(),
        "callbacks": {callback.state_key: callback.state_dict() for callback in run.callbacks},
    }


def restore_shared_state(run: RunState, state: Mapping[str, Any]) -> None:
    """Restore what `shared_state` gave, except for the callbacks; a part that the saved run did not have stays new."""
    assert run.schedule is not None
    run.nonfinite.num_in_a_row = state["num_nonfinite_in_a_row"]
    for part in run.parts:
        if part.name in state["parts"]:
            part.load_state_dict(state["parts"][part.name])
    run.schedule.load_state_dict(state["schedule"])
    for part, (parameters, optimizer) in run.optimizers.items():
        for group, saved in zip(optimizer.param_groups, state[f"{part}_groups"], strict=True):
            group.update(saved)
        for name, scalars in state[f"{part}_scalars"].items():
            # A fused optimizer reads its step count on the weights' device.
            device = parameters[name].device if optimizer.defaults.get("fused") else torch.device("cpu")
            optimizer.state[parameters[name]].update(
                {key: value.to(device) if isinstance(value, Tensor) else value for key, value in scalars.items()}
            )


def restore_callbacks(trainer: pl.Trainer, states: Mapping[str, Mapping[str, Any]]) -> None:
    """Restore the callbacks; one that the saved run did not have keeps its initial state."""
    for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
        if callback.state_key in states:
            callback.load_state_dict(states[callback.state_key])
