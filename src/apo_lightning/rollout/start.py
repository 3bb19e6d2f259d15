"""An engine beside a policy: started empty, in the policy's architecture and dtype."""

from typing import Protocol, runtime_checkable

import torch

from apo_lightning.model.policy import Policy
from apo_lightning.rollout.engine import EngineContext, RolloutEngine


@runtime_checkable
class Process(Protocol):
    """One process of a run: a Lightning `Trainer` or `Fabric`."""

    @property
    def global_rank(self) -> int:
        """The rank among all processes, 0 … world_size − 1."""
        ...

    @property
    def local_rank(self) -> int:
        """The rank among the processes of this node."""
        ...

    @property
    def world_size(self) -> int:
        """The number of processes of the run."""
        ...


def start_engine(
    engine: RolloutEngine,
    policy: Policy,
    *,
    max_model_len: int,
    device: torch.device,
    seed: int,
    process: Process | None = None,
) -> None:
    """`engine.setup` for this policy. Its weights come by `weight_sync.publish`.

    Args:
        engine: not yet started.
        policy: gives architecture and dtype.
        max_model_len: the longest prompt and completion [tokens].
        device: of this process.
        seed: the run's.
        process: this one; None: the only one.

    Raises:
        ConfigError: see `Policy.architecture_folder` and `RolloutEngine.check`.
    """
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
