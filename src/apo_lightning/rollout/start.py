"""An engine beside a policy: started empty, in the policy's architecture and dtype."""

from pathlib import Path

import torch

from apo_lightning.policy import Policy
from apo_lightning.rollout.engine import EngineContext, RolloutEngine


def start_engine(
    engine: RolloutEngine,
    policy: Policy,
    *,
    max_model_len: int,
    device: torch.device,
    seed: int,
    global_rank: int = 0,
    local_rank: int = 0,
    world_size: int = 1,
) -> None:
    """`engine.setup` for this policy. Its weights come by `weight_sync.publish`."""
    with policy.architecture_folder() as folder:
        engine.setup(
            EngineContext(
                model_dir=Path(folder),
                dtype=policy.compute_dtype,
                max_model_len=max_model_len,
                device=device,
                seed=seed,
                global_rank=global_rank,
                local_rank=local_rank,
                world_size=world_size,
            )
        )
