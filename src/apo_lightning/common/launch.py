"""What the environment says of this process: who started it, and as which of how many ranks. Imports nothing large."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from apo_lightning.errors import ConfigError

INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs in which Lightning starts the ranks itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher, by the variables that it gives each rank."""

    name: str
    size: str = ""
    ranks: tuple[str, ...]
    """The first is the rank; those that are set must agree."""
    needs: tuple[str, ...] = ()
    """Without these, several ranks do not find each other."""
    per_node: str = ""
    """Ranks of a machine."""


TORCHRUN = Launcher(
    name="torchrun",
    size="WORLD_SIZE",
    ranks=("RANK",),
    needs=("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
    per_node="LOCAL_WORLD_SIZE",
)
SRUN = Launcher(
    name="srun",
    size="SLURM_NTASKS",
    ranks=("SLURM_PROCID",),
    needs=("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS_PER_NODE"),
    per_node="SLURM_NTASKS_PER_NODE",
)
BY_HAND = Launcher(
    name="a launcher",
    size="WORLD_SIZE",
    ranks=("LOCAL_RANK", "RANK"),
    needs=("LOCAL_RANK", "MASTER_PORT"),
)
"""Lightning's own launcher, which is the first rank, or the ranks' variables set by hand, on one machine."""
SRUN_UNSEEN = Launcher(
    name="srun in a job named bash or interactive", size="SLURM_STEP_NUM_TASKS", ranks=("SLURM_PROCID",)
)
NODES = ("NODE_RANK", "GROUP_RANK")
"""Lightning reads these where neither torchrun nor srun has started the process; only rank 0 is the first machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the environment says, checked to be possible."""

    launcher: Launcher | None
    """None: nobody's; this process is the run, or starts its other ranks."""
    size: int = 1
    rank: int = 0


def launch() -> Launch:
    """Who started this process; raises `ConfigError` where the environment contradicts itself.

    The first in Lightning's own order is asked: torchrun within srun is torchrun. A leftover of another launcher, such
    as `LOCAL_RANK=1` in a shell, would make a lone process a rank that writes no file.
    """
    first = None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        first = TORCHRUN
    elif "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in INTERACTIVE:
        first = SRUN
    else:
        if any(_number(name, 0) for name in NODES):
            raise ConfigError(_refusal(BY_HAND, "the ranks of several machines are started by torchrun or srun"))
        first = BY_HAND if _has_rank(BY_HAND) else None
    found = Launch(launcher=None) if first is None else _launch_by(first)
    if first is SRUN and _has_rank(BY_HAND) and _launch_by(BY_HAND).rank != found.rank:
        raise ConfigError(_refusal(BY_HAND, f"srun says rank {found.rank}"))
    for other in (*_unread(), *(() if first in (TORCHRUN, SRUN) else (SRUN_UNSEEN,))):
        if found.size == 1 and _has_rank(other) and _launch_by(other).size > 1:
            raise ConfigError(_refusal(other, f"{other.name} starts no ranks of a run: use torchrun or srun"))
    return found


def check_launch(num_local: int, num_nodes: int) -> None:
    """Raise `ConfigError` unless the environment's ranks are those that the trainer asks for.

    Args:
        num_local: `trainer.devices`, on each machine.
        num_nodes: `trainer.num_nodes`.
    """
    found, asked = launch(), num_local * num_nodes
    wants = f"the trainer asks for {asked} process{'es' * (asked > 1)} (trainer.devices × trainer.num_nodes)"
    if found.launcher is None:
        if num_nodes > 1:
            raise ConfigError(
                f"trainer.num_nodes is {num_nodes}, and this process was started by no launcher: start {num_local} a "
                "node with torchrun or srun"
            )
        return
    per_node = os.environ.get(found.launcher.per_node, str(num_local))
    if found.size != asked or per_node != str(num_local):
        start = "srun --ntasks-per-node" if found.launcher is SRUN else "torchrun --nproc-per-node"
        raise ConfigError(_refusal(found.launcher, f"{wants}, {num_local} a node: start it by `{start}={num_local}`"))


def is_first_process() -> bool:
    """Whether this is the first rank, or the only process; known before ranks have met."""
    own = os.getpid()
    if own not in _is_first:
        try:
            _is_first[own] = launch().rank == 0
        except ConfigError:
            return True  # which this process is about to say
    return _is_first[own]


_is_first: dict[int, bool] = {}
"""Process id → whether it is the first. Lightning takes WORLD_SIZE out of the environment after a validation."""


def _unread() -> Iterator[Launcher]:
    """Launchers whose variables Lightning does not read, by a pair `…_SIZE`, `…_RANK` of numbers."""
    for rank in sorted(os.environ):
        size = "FLUX_JOB_SIZE" if rank == "FLUX_TASK_RANK" else f"{rank.removesuffix('RANK')}SIZE"
        if rank.endswith("_RANK") and os.environ[rank].isdigit() and os.environ.get(size, "").isdigit():
            yield Launcher(name="another launcher", size=size, ranks=(rank,))


def _has_rank(launcher: Launcher) -> bool:
    return any(name in os.environ for name in launcher.ranks)


def _launch_by(launcher: Launcher) -> Launch:
    size = _number(launcher.size, 1)
    ranks = {_number(name, 0) for name in launcher.ranks if name in os.environ} or {0}
    if len(ranks) > 1:
        raise ConfigError(_refusal(launcher, "they are not of one rank on one machine"))
    if (rank := min(ranks)) >= size:
        raise ConfigError(_refusal(launcher, f"there is no rank {rank} of {size}"))
    missing = [name for name in launcher.needs if name not in os.environ]
    if size > 1 and missing:
        raise ConfigError(_refusal(launcher, f"{size} ranks also need {', '.join(missing)}, which it would have set"))
    return Launch(launcher=launcher, size=size, rank=rank)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit():
        raise ConfigError(f"{name} is {text!r} in the environment, not a number: unset it")
    return int(text)


def _refusal(launcher: Launcher, reason: str) -> str:
    """The variables that are set, why they cannot be, and the remedy."""
    marks = ("TORCHELASTIC_RUN_ID",) if launcher is TORCHRUN else NODES if launcher is BY_HAND else ()
    names = [name for name in (*marks, launcher.size, *launcher.ranks, launcher.per_node) if name in os.environ]
    said = ", ".join(f"{name}={os.environ[name]}" for name in names)
    return (
        f"{launcher.name} has started this process, says the environment ({said}), but {reason}; if they are left "
        f"over, unset {' '.join(names)}"
    )
