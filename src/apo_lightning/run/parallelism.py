"""Whether the processes of a run, its strategy and its engine go together; known before any weights are loaded."""

from typing import Any

import torch
from omegaconf import DictConfig
from transformers import PretrainedConfig

from apo_lightning.errors import ConfigError
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.tensor_parallel import check_tensor_parallel


def check_strategy(strategy: Any, device: torch.device, world_size: int) -> None:
    """Whether a sharding strategy fits the devices.

    Args:
        strategy: `trainer.strategy`, as configured: a name or a node.
        device: of every rank.
        world_size: devices × nodes.

    Raises:
        ConfigError: there are more or fewer shards than processes, or shards of a CPU would be offloaded to it.
    """
    if not isinstance(strategy, DictConfig):
        return
    shards = strategy.get("data_parallel_size", world_size)
    if shards != world_size:
        raise ConfigError(
            f"trainer.strategy.data_parallel_size is {shards}, but trainer.devices × trainer.num_nodes is "
            f"{world_size}: a process holds one shard, so make them equal"
        )
    if strategy.get("offload_to_cpu") and device.type == "cpu":
        raise ConfigError("trainer.strategy.offload_to_cpu is true, but the trainer runs on the CPU: choose false")


def check_engine_ranks(engine: RolloutEngine, config: PretrainedConfig, devices_per_node: int, num_nodes: int) -> None:
    """Whether the ranks of a node divide into the engine's tensor-parallel groups, and the model into their slices.

    Args:
        engine: one without `tensor_parallel_size` runs in every rank.
        config: of the model.
        devices_per_node: ranks of one node: a group must not span two.
        num_nodes: of the run.

    Raises:
        ConfigError: they do not.
    """
    size = getattr(engine, "tensor_parallel_size", 1)
    check_tensor_parallel(size, devices_per_node * num_nodes)
    if devices_per_node % size:
        raise ConfigError(
            f"engine tensor_parallel_size is {size} and a node has {devices_per_node} devices: give a divisor, so that "
            "no engine spans two nodes"
        )
    heads = config.get_text_config().num_attention_heads
    if heads % size:
        raise ConfigError(
            f"engine tensor_parallel_size is {size}, which does not divide the model's {heads} attention heads: give a "
            "divisor of both these and the processes"
        )
