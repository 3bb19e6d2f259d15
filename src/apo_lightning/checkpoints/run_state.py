"""The state of a run: its large tensors by name, and everything else as plain data."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apo_lightning.data.validation import ValidationPass
from apo_lightning.model.critic import Critic
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.rollout.weight_sync import unwrapped_name
from apo_lightning.update import run as update_run
from apo_lightning.update.engine_check import EngineCheck
from apo_lightning.update.history import History


@runtime_checkable
class Run(update_run.Run, Protocol):
    """The attributes of the Lightning module that checkpoints need."""

    policy_version: int
    engine_check: EngineCheck
    validation: ValidationPass


@runtime_checkable
class TrainingRun(Run, Protocol):
    """The attributes that the module has once training starts."""

    schedule: LRScheduler
    history: History

    @property
    def optimizer(self) -> Optimizer:
        """The policy's optimizer."""
        ...


def trained_parameters(policy: Policy) -> dict[str, torch.nn.Parameter]:
    """The trained parameters by Hugging Face name; frozen ones are loaded with the model."""
    return {unwrapped_name(name): p for name, p in policy.model.named_parameters() if p.requires_grad}


def policy_tensors(policy: Policy) -> dict[str, Tensor]:
    """The trained weights themselves (no copies), unsharded or sharded."""
    return {f"policy.{name}": parameter.detach() for name, parameter in trained_parameters(policy).items()}


def reference_tensors(reference: Reference | None) -> dict[str, Tensor]:
    """The reference's weights themselves, if they change during the run."""
    changing = {} if reference is None else reference.changing_weights
    return {f"reference.{unwrapped_name(name)}": weight for name, weight in changing.items()}


def critic_tensors(critic: Critic | None) -> dict[str, Tensor]:
    """The critic's own weights, likewise; empty without a critic."""
    return {} if critic is None else {f"critic.{name}": p.detach() for name, p in critic.parameters.items()}


def _optimized(run: TrainingRun) -> Mapping[str, tuple[Mapping[str, torch.nn.Parameter], Optimizer]]:
    """The policy's parameters with their optimizer and, if there is one, the critic's; by the prefix of their names."""
    parts = {"optimizer": (trained_parameters(run.policy), run.optimizer)}
    return parts if run.critic is None else parts | {"critic_optimizer": (run.critic.parameters, run.critic.optimizer)}


def optimizer_tensors(run: TrainingRun) -> dict[str, Tensor]:
    """The state of the optimizers that has one value per element of a parameter."""
    return {
        f"{prefix}.{name}.{key}": value
        for prefix, (parameters, optimizer) in _optimized(run).items()
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.dim() > 0
    }


def new_optimizer_tensors(run: TrainingRun, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Allocate the optimizer tensors that a checkpoint contains, sharded like their parameters."""
    for part, (parameters, optimizer) in _optimized(run).items():
        for name, parameter in parameters.items():
            prefix = f"{part}.{name}."
            for key in (full.removeprefix(prefix) for full in shapes if full.startswith(prefix)):
                is_alike = shapes[prefix + key] == tuple(parameter.shape)
                buffer = torch.zeros_like(parameter) if is_alike else torch.zeros(shapes[prefix + key])
                optimizer.state[parameter][key] = buffer.detach()
    return optimizer_tensors(run)


def shared_state(run: TrainingRun) -> dict[str, Any]:
    """The state that is equal on all ranks."""
    optimizers: dict[str, Any] = {}
    for part, (parameters, optimizer) in _optimized(run).items():
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
        "policy_version": run.policy_version,
        "engine_check": run.engine_check.state_dict(),
        "num_nonfinite_in_a_row": run.nonfinite.num_in_a_row,
        "schedule": run.schedule.state_dict(),
        "callbacks": {callback.state_key: callback.state_dict() for callback in run.trainer.callbacks},  # pyright: ignore[reportAttributeAccessIssue]
    }


def restore_shared_state(run: TrainingRun, state: Mapping[str, Any]) -> None:
    """Restore what `shared_state` gave, except for the callbacks and the engine check."""
    run.nonfinite.num_in_a_row = state["num_nonfinite_in_a_row"]
    run.schedule.load_state_dict(state["schedule"])
    for part, (parameters, optimizer) in _optimized(run).items():
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
