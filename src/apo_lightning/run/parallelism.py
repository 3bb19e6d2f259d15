"""Whether the processes of a run and its strategy go together; known before any weights are loaded."""

from typing import Any

from omegaconf import DictConfig

from apo_lightning.errors import ConfigError


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
