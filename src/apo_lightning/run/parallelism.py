"""Whether the processes of a run, its strategy and its engine go together; known before any weights are loaded."""

from typing import Any

from omegaconf import DictConfig
from transformers import PretrainedConfig

from apo_lightning.errors import ConfigError
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.tensor_parallel import check_tensor_parallel


def check_strategy(strategy: Any, world_size: int) -> None:
    """Raise `ConfigError` if `trainer.strategy`, a name or a node, has more or fewer shards than processes."""
    if not isinstance(strategy, DictConfig):
        return
    shards = strategy.get("data_parallel_size", world_size)
    if shards != world_size:
        raise ConfigError(
            f"trainer.strategy.data_parallel_size is {shards}, but trainer.devices × trainer.num_nodes is "
            f"{world_size}: a process holds one shard, so make them equal"
        )


def check_engine_ranks(engine: RolloutEngine, config: PretrainedConfig, devices_per_node: int, num_nodes: int) -> None:
    """Raise `ConfigError` if the ranks of a node or the model's heads do not divide into tensor-parallel groups."""
    size = getattr(engine, "tensor_parallel_size", 1)  # an engine without it runs in every rank
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
