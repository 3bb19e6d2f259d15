"""Starting an engine for a policy."""

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric

from apo_lightning.common.console import say
from apo_lightning.model.policy import Policy
from apo_lightning.rollout.engine import EngineContext, RolloutEngine


def start_engine(
    engine: RolloutEngine,
    policy: Policy,
    *,
    max_model_len: int,
    device: torch.device,
    seed: int,
    process: pl.Trainer | Fabric | None = None,
) -> None:
    """Call `engine.setup` with the policy's architecture and dtype; `weight_sync.publish` brings the weights.

    `process` gives the ranks, None means a single process; the others are fields of `EngineContext`. Raises
    `ConfigError` as `Policy.architecture_folder` and `RolloutEngine.check` do.
    """
    say(f"starting the engine: {engine.name}")  # vLLM takes seconds on an idle machine, a minute on a busy one
    engine.setup(
        EngineContext(
            model_dir=policy.architecture_folder(),
            dtype=policy.compute_dtype,
            max_model_len=max_model_len,
            device=device,
            seed=seed,
            global_rank=0 if process is None else process.global_rank,
            local_rank=0 if process is None else process.local_rank,
            world_size=1 if process is None else process.world_size,
        )
    )
