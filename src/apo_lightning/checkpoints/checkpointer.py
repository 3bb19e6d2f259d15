"""Saves a run where it can be gone on from, and puts a new process there."""

import functools
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException

from apo_lightning.checkpoints.folder import (
    Checkpoint,
    Header,
    Position,
    damaged_file,
    flush,
    partial_folder,
    prune,
    require_seen_by_all,
    set_aside,
    write_header,
)
from apo_lightning.checkpoints.plain import SHARED, TENSORS, load_plain, rank_file, save_plain
from apo_lightning.checkpoints.rollouts import from_plain, to_plain
from apo_lightning.checkpoints.run_state import (
    Run,
    TrainingRun,
    new_optimizer_tensors,
    optimizer_tensors,
    policy_tensors,
    random_states,
    restore_callbacks,
    restore_random_states,
    restore_shared_state,
    shared_state,
)
from apo_lightning.checkpoints.settings import CheckpointSettings
from apo_lightning.checkpoints.snapshots import SNAPSHOTS, publish_snapshot, write_weights
from apo_lightning.checkpoints.stop import StopRequest
from apo_lightning.checkpoints.tensors import (
    background_group,
    load_tensors,
    save_tensors,
    save_tensors_later,
    tensor_shapes,
)
from apo_lightning.checkpoints.writing import Written
from apo_lightning.common.console import say
from apo_lightning.common.files import publish_folder
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.errors import ConfigError, Preempted, in_brief
from apo_lightning.model.policy import Policy
from apo_lightning.types import Rollouts


@dataclass(slots=True)
class _Pending:
    """A checkpoint whose tensors are still being written."""

    position: Position
    score: float | None
    written: Written
    tensors: Future[object]


class Checkpointer:
    """Saves between two steps, and when the run is asked to stop, after sampling too; an update is never cut in two.

    All methods are collective. A save that fails leaves the checkpoints before it as they are; it is said, and the run
    goes on, unless a folder is missing: that will not mend itself, as a full disk may.

    Args:
        settings: when and what.
        root: the run's `checkpoints/`.
        config: the run's, as nested plain data; goes with every checkpoint.
        resumed: the checkpoint to go on from; None: begin at the beginning.
        stop: is looked at where the run can be saved.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        root: Path,
        config: Mapping[str, Any],
        resumed: Checkpoint | None,
        stop: StopRequest,
    ) -> None:
        self.settings = settings
        self.root = root
        self.config = config
        self.stop = stop
        self.num_failed = 0
        """Saves that did not succeed."""
        self._resumed = resumed
        self._rollouts: Rollouts | None = None
        self._saved: Position | None = resumed.header.position if resumed else None
        self._resumed_step = resumed.header.position.step if resumed else 0
        self._pending: _Pending | None = None
        self._saved_at = time.monotonic()

    # ------------------------------------------------------------------ going on

    def restore_policy(self, policy: Policy, ranks: Ranks) -> int:
        """The weights, before anything samples from them.

        Returns:
            The policy version before the next sync: 0 at the beginning of a run.

        Raises:
            ConfigError: the ranks do not share a folder for checkpoints, or a file's content is not what was written;
                the checkpoint is then set aside.
        """
        if ranks.world_size > 1:
            require_seen_by_all(self.root, ranks.rank)
        if self._resumed is None:
            return 0
        names = sorted(self._resumed.header.files)[ranks.rank :: ranks.world_size]
        damaged = [name for name in from_all_ranks(damaged_file(self._resumed, names)) if name is not None]
        if damaged:
            folder = self._resumed.folder
            aside = set_aside(folder).name if ranks.rank == 0 else ""
            raise ConfigError(
                f"checkpoint {folder} is damaged: {damaged[0]} is not what was written. It was set aside as "
                f"{aside}: resume once more to go on from the one before"
            )
        load_tensors(policy_tensors(policy), self._resumed.folder / TENSORS)
        shared = load_plain(self._resumed.folder / SHARED)
        restore_callbacks(ranks.trainer, shared["callbacks"])
        return shared["policy_version"] - 1

    def restore_training(self, run: TrainingRun) -> None:
        """Optimizer, schedule, random states, and rollouts sampled already. To be called once the optimizer exists."""
        if self._resumed is None:
            return
        folder, self._resumed = self._resumed.folder, None
        shared = load_plain(folder / SHARED)
        room = new_optimizer_tensors(run.policy, run.optimizer, tensor_shapes(folder / TENSORS))
        if room:
            load_tensors(room, folder / TENSORS)
        restore_shared_state(run, shared)
        run.engine_check.load_state_dict(shared["engine_check"])
        own = folder / rank_file(run.ranks.rank)
        if own.is_file():
            mine = load_plain(own)
            restore_random_states(mine["random"])
            if mine["rollouts"] is not None:
                self._rollouts = from_plain(mine["rollouts"])

    def sampled_rollouts(self) -> Rollouts | None:
        """This rank's rollouts of the step that the run was stopped in, once; None: they are still to be sampled."""
        rollouts, self._rollouts = self._rollouts, None
        return rollouts

    # ------------------------------------------------------------------ saving

    def between_steps(self, run: TrainingRun) -> None:
        """Save if it is time, or if the run is to stop.

        Raises:
            Preempted: it was asked to stop, and was saved.
        """
        self._finish(run, wait=False)
        position = Position(step=run.trainer.global_step)
        if self.settings.snapshot_every is not None and position.step % self.settings.snapshot_every == 0:
            self._snapshot(run, position)
        if self._should_stop(run):
            self._save_and_stop(run, position, None)
        elif self._is_due(run, position):
            self._save(run, position, None, asynchronous=self.settings.asynchronous)

    def after_sampling(self, run: TrainingRun, rollouts: Rollouts | None) -> None:
        """Stop if asked to, with the rollouts where every rank has them; None: this rank has given up sampling.

        Raises:
            Preempted: as above.
        """
        if not self._should_stop(run):
            return
        is_sampled = not run.ranks.max(rollouts is None)
        position = Position(step=run.trainer.global_step, is_sampled=is_sampled)
        self._save_and_stop(run, position, rollouts if is_sampled else None)

    def while_validating(self, run: Run) -> None:
        """Stop if asked to. In the middle of training this saves; before and after it, there is nothing new to save.

        Raises:
            Preempted: as above.
        """
        if not self._should_stop(run):
            return
        if run.trainer.state.fn == "fit":
            self._save_and_stop(cast("TrainingRun", run), Position(step=run.trainer.global_step), None)
        raise self._preempted(run)

    def after_training(self, run: TrainingRun) -> None:
        """The last checkpoint, from which a longer run can go on."""
        position = Position(step=run.trainer.global_step)
        self._finish(run, wait=True)
        if self.settings.snapshot_every is not None:
            self._snapshot(run, position)
        if self.settings.is_on and position != self._saved:
            self._save(run, position, None, asynchronous=False)

    def _is_due(self, run: TrainingRun, position: Position) -> bool:
        """Whether the number of rollouts or, on any rank, the clock asks for a checkpoint."""
        every, minutes = self.settings.save_every, self.settings.save_after_minutes
        if position.step == 0 or position == self._saved:
            return False
        if every is not None and position.step % every == 0:
            return True
        return minutes is not None and bool(run.ranks.max(time.monotonic() - self._saved_at >= 60 * minutes))

    def _should_stop(self, run: Run) -> bool:
        return bool(run.ranks.max(self.stop.signal is not None))

    def _save_and_stop(self, run: TrainingRun, position: Position, rollouts: Rollouts | None) -> None:
        self._finish(run, wait=True)
        if position != self._saved and (position.step > 0 or position.is_sampled):
            self._save(run, position, rollouts, asynchronous=False)
        raise self._preempted(run)

    def _preempted(self, run: Run) -> Preempted:
        name = self.stop.signal.name if self.stop.signal is not None else "another rank's signal"
        newest = f"checkpoint {self._saved.name}" if self._saved is not None else "no checkpoint yet"
        return Preempted(f"stopped by {name} in step {run.trainer.global_step + 1}, {newest}: go on with resume=auto")

    def _save(self, run: TrainingRun, position: Position, rollouts: Rollouts | None, *, asynchronous: bool) -> None:
        partial = partial_folder(self.root, position)
        written = Written(partial)
        is_first = run.ranks.rank == 0
        self._saved_at = time.monotonic()

        def small_files() -> None:
            if is_first:
                save_plain(shared_state(run), partial / SHARED, written)
            own = {"random": random_states(), "rollouts": None if rollouts is None else to_plain(rollouts)}
            save_plain(own, partial / rank_file(run.ranks.rank), written)

        tensors = policy_tensors(run.policy) | optimizer_tensors(run.policy, run.optimizer)
        pending = _Pending(position=position, score=self._score(run), written=written, tensors=Future())

        def large_files() -> None:
            if asynchronous:
                pending.tensors = save_tensors_later(tensors, partial / TENSORS, written, self._background_group)
            else:
                save_tensors(tensors, partial / TENSORS, written)
                pending.tensors.set_result(None)

        steps = (lambda: _empty(partial) if is_first else None, small_files, large_files)
        if all(self._together(run, position, action) for action in steps):
            self._pending = pending
            self._finish(run, wait=not asynchronous)

    def _snapshot(self, run: TrainingRun, position: Position) -> None:
        """Keep the weights alone. Step 0 is the model as it began, and where the run goes on the step before has it."""
        root = self.root / SNAPSHOTS
        if position.step == 0 or (position.step == self._resumed_step and (root / position.name).is_dir()):
            return
        partial, is_first = partial_folder(root, position), run.ranks.rank == 0
        written = Written(partial)
        steps = (lambda: _empty(partial) if is_first else None, lambda: write_weights(run, written))
        if all(self._together(run, position, action, snapshot=True) for action in steps):
            files = _of_all_ranks(written)
            publish = functools.partial(publish_snapshot, run, partial, position, self.config, files)
            self._together(run, position, publish if is_first else lambda: None, snapshot=True)

    def _finish(self, run: TrainingRun, *, wait: bool) -> None:
        """Give a checkpoint its name, when all of its files are written."""
        if self._pending is None:
            return
        pending = self._pending
        if not wait and run.ranks.max(not pending.tensors.done()):
            return
        self._pending = None
        position, partial = pending.position, partial_folder(self.root, pending.position)

        def check() -> None:
            pending.tensors.result()
            pending.written.check()

        def publish() -> None:
            header = Header(
                position=position,
                world_size=run.ranks.world_size,
                validated_step=run.validation.last_step,
                score=pending.score,
                config=self.config,
                files=files,
            )
            write_header(partial, header)
            publish_folder(partial, self.root / position.name)
            flush(self.root)
            prune(self.root, self.settings.keep)

        if not self._together(run, position, check):
            return
        files = _of_all_ranks(pending.written)
        if self._together(run, position, publish if run.ranks.rank == 0 else lambda: None):
            self._saved = position

    def _together(
        self, run: TrainingRun, position: Position, action: Callable[[], Any], *, snapshot: bool = False
    ) -> bool:
        """Whether it succeeded on all ranks. Where it did not, none goes on, and what was written is removed."""
        what, root = ("snapshot", self.root / SNAPSHOTS) if snapshot else ("checkpoint", self.root)
        failure = None
        try:
            action()
        except (OSError, RuntimeError, CheckpointException) as error:
            failure = _Failure.of(error)
        failures = [failure for failure in from_all_ranks(failure) if failure is not None]
        if not failures:
            return True
        for failure in failures:
            if failure.is_of_a_folder:
                raise ConfigError(
                    f"{what} {position.name} could not be written ({failure.reason}): {root} was removed, or "
                    "not all ranks see it; go on with resume=auto where they do"
                )
        self.num_failed += 1
        if run.ranks.rank == 0:
            _empty(partial_folder(root, position), make=False)
            newest, reason = self._saved.name if self._saved is not None else "none", failures[0].reason
            say(f"{what} {position.name} could not be written ({reason}); newest checkpoint: {newest}. The run goes on")
        return False

    @functools.cached_property
    def _background_group(self) -> ProcessGroup | None:
        return background_group()

    def _score(self, run: TrainingRun) -> float | None:
        if self.settings.best is None or run.validation.last_step != run.trainer.global_step:
            return None
        return float(run.trainer.callback_metrics[self.settings.best])


def _of_all_ranks(written: Written) -> dict[str, list[int]]:
    """The files of all ranks; collective."""
    return {name: entry for files in from_all_ranks(written.files) for name, entry in files.items()}


def _empty(folder: Path, *, make: bool = True) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if make:
        folder.mkdir(parents=True)


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a save did not succeed on one rank."""

    reason: str
    """In one line."""
    is_of_a_folder: bool
    """A file's folder is not there."""

    @classmethod
    def of(cls, error: BaseException) -> "_Failure":
        if isinstance(error, CheckpointException) and error.failures:
            error = next(iter(error.failures.values()))[0]  # torch wraps what happened on each rank
        return cls(in_brief(error), isinstance(error, FileNotFoundError))
