"""Saves a run where it can be resumed, and restores it from there."""

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from apo_lightning.checkpoints.contents import (
    SHARED,
    are_finite,
    load_plain,
    load_tensors,
    rank_file,
    save_plain,
    save_tensors,
    tensor_shapes,
)
from apo_lightning.checkpoints.folder import (
    SNAPSHOTS,
    TENSORS,
    Checkpoint,
    Header,
    complete_checkpoints,
    damaged_file,
    partial_folder,
    prune,
    publish,
    require_seen_by_all,
    step_name,
    sums_of_share,
)
from apo_lightning.checkpoints.run_state import (
    RunState,
    new_optimizer_tensors,
    optimizer_tensors,
    policy_tensors,
    restore_callbacks,
    restore_shared_state,
    shared_state,
)
from apo_lightning.checkpoints.stop import StopRequest
from apo_lightning.common.console import say
from apo_lightning.common.files import flush_written
from apo_lightning.common.identity import Identity
from apo_lightning.common.random_states import random_states, restore_random_states
from apo_lightning.common.ranges import Checked, Count
from apo_lightning.contracts import Recipe
from apo_lightning.distributed.gathering import Ranks, from_all_ranks
from apo_lightning.errors import ConfigError, NonfiniteError, Preempted, in_brief
from apo_lightning.model.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings(Checked):
    """When to save, and what to keep: the `checkpoint:` node of `configs/train.yaml`.

    Attributes:
        save_every: rollouts between two checkpoints; None: only a stop signal saves.
        keep: number of newest checkpoints to keep. With 1 there is no other one if it turns out to be damaged.
        best: a held-out metric, `val/<name>/pass@<k>`: also keep the checkpoint where it is highest; None: do not.
        snapshot_every: rollouts between two snapshots, which hold only the trained weights and are all kept; None: no
            snapshots.
    """

    save_every: Count | None
    keep: Count
    best: str | None
    snapshot_every: Count | None = None

    section: ClassVar[str] = "checkpoint."

    def check(self, recipe: Recipe) -> None:
        """Raise `ConfigError` if `best` is not a metric that the run will log."""
        ks = sorted({1, recipe.settings.validation_samples})
        known = [f"val/{name}/pass@{k}" for name in recipe.data.validation_names for k in ks]
        if self.best is not None and self.best not in known:
            raise ConfigError(f"checkpoint.best is {self.best}: choose one of {', '.join(known) or 'nothing'}")


class Checkpointer:
    """Saves the state after whole steps; after a stop signal also while the next step is being sampled.

    All methods are collective. If a save fails (for example, disk full), older checkpoints remain, and the run logs it
    and continues; if it was the last save, the run fails once it has written its other files. Weights with NaN or inf
    are never saved: they would replace the last good ones, so the run ends.

    Args:
        settings: when to save and what to keep.
        root: the run's `checkpoints/`.
        config: of the run, as nested plain data; stored in every checkpoint.
        identity: of its model, data and code; stored as well.
        resumed: the checkpoint to resume; None: start from the beginning.
        stop: checked wherever the run can be saved.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        root: Path,
        config: Mapping[str, Any],
        identity: Identity,
        resumed: Checkpoint | None,
        stop: StopRequest,
    ) -> None:
        self.settings = settings
        self.root = root
        self.config = config
        self.identity = identity
        self.stop = stop
        self._resumed = resumed
        self._saved: int | None = resumed.header.step if resumed else None
        self._before_sampling: tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]] | None = None
        self._resumed_step = resumed.header.step if resumed else 0
        self._unsaved: dict[Path, str] = {}
        """By folder, the last checkpoint or snapshot if it could not be written; on the first rank."""

    def restore_policy(self, policy: Policy, ranks: Ranks) -> int:
        """Restore the weights and the callbacks; returns the policy version before the next sync, 0 for a new run.

        Raises:
            ConfigError: the ranks do not share the folder of the checkpoints, or the checkpoint is damaged.
        """
        if ranks.world_size > 1:
            require_seen_by_all(self.root, ranks.rank)
        if self._resumed is None:
            return 0
        names = sorted(self._resumed.header.files)[ranks.rank :: ranks.world_size]
        damaged = [name for name in from_all_ranks(damaged_file(self._resumed, names)) if name is not None]
        if damaged:
            raise ConfigError(
                f"checkpoint {self._resumed.folder} is damaged: {damaged[0]} has changed since it was written; delete "
                "the folder and resume again to continue from the checkpoint before it"
            )
        load_tensors(policy_tensors(policy), self._resumed.folder / TENSORS)
        shared = load_plain(self._resumed.folder / SHARED)
        if shared["step"] != self._resumed.header.step:
            raise ConfigError(
                f"checkpoint {self._resumed.folder} is damaged: {SHARED} is of step {shared['step']}; delete the folder"
            )
        restore_callbacks(ranks.trainer, shared["callbacks"])
        return shared["policy_version"] - 1

    def restore_training(self, run: RunState) -> None:
        """Restore parts, optimizers, schedule and random states, once the optimizer exists."""
        if self._resumed is None:
            return
        folder, num_ranks, self._resumed = self._resumed.folder, self._resumed.header.num_ranks, None
        shared = load_plain(folder / SHARED)
        tensors = run.own_tensors | new_optimizer_tensors(run, tensor_shapes(folder / TENSORS))
        if tensors:
            load_tensors(tensors, folder / TENSORS)
        restore_shared_state(run, shared)
        if run.ranks.rank < num_ranks:
            restore_random_states(load_plain(folder / rank_file(run.ranks.rank))["random"])

    def between_steps(self, run: RunState) -> None:
        """Save if a checkpoint is due or a stop signal was received; after a signal, raise `Preempted`."""
        if _is_multiple(run.step, self.settings.snapshot_every):
            self._snapshot(run)
        if self._should_stop(run):
            self._save_and_stop(run)
        elif run.step > 0 and run.step != self._saved and _is_multiple(run.step, self.settings.save_every):
            self._save(run)

    @contextmanager
    def sampling(self, run: RunState) -> Iterator[None]:
        """Keep the state that sampling and scoring move: of the parts and of the random generators."""
        if run.ranks.trainer.state.fn == "fit":  # before and after training there is nothing new to save
            self._before_sampling = [copy.deepcopy(part.state_dict()) for part in run.parts], random_states()
        yield
        # Else a part that samples after the update would save the new weights with the old state.
        self._before_sampling = None

    def end_sampling(self, run: RunState) -> None:
        """After a stop signal, save the state from before `sampling`, if within it, and raise `Preempted`."""
        if not self._should_stop(run):
            return
        if self._before_sampling is not None:
            of_parts, random = self._before_sampling
            for part, state in zip(run.parts, of_parts, strict=True):
                part.load_state_dict(state)
            restore_random_states(random)
            self._save_and_stop(run)
        raise self._preempted(run)

    def after_training(self, run: RunState) -> None:
        """Write the last checkpoint, from which a longer run can be resumed."""
        if self.settings.snapshot_every is not None:
            self._snapshot(run)
        if self.settings.save_every is not None and run.step != self._saved:
            self._save(run)

    def require_saved(self) -> None:
        """Raise `ConfigError`, on the first rank, if the last checkpoint or snapshot could not be written."""
        if self._unsaved:
            what = " and ".join(self._unsaved.values())
            raise ConfigError(f"{what} could not be written; the rest is: make room and continue with resume=auto")

    def _should_stop(self, run: RunState) -> bool:
        return bool(run.ranks.max(self.stop.is_requested()))

    def _save_and_stop(self, run: RunState) -> None:
        if run.step > 0 and run.step != self._saved:
            self._save(run)
        raise self._preempted(run)

    def _preempted(self, run: RunState) -> Preempted:
        name = self.stop.signal.name if self.stop.signal is not None else "another rank's signal"
        newest = f"checkpoint {step_name(self._saved)}" if self._saved is not None else "nothing, no checkpoint was due"
        return Preempted(f"stopped by {name} in step {run.step + 1}; kept: {newest}")

    def _save(self, run: RunState) -> None:
        def small_files(folder: Path) -> None:
            if run.ranks.rank == 0:
                save_plain(shared_state(run), folder / SHARED)
            save_plain({"random": random_states()}, folder / rank_file(run.ranks.rank))

        def large_files(folder: Path) -> None:
            tensors = policy_tensors(run.policy) | run.own_tensors | optimizer_tensors(run)
            save_tensors(tensors, folder / TENSORS)

        if self._write(run, self.root, small_files, large_files):
            self._saved = run.step
            if run.ranks.rank == 0:
                self._prune()

    def _prune(self) -> None:
        """Delete older checkpoints; what cannot be deleted stays, and is tried again after the next save."""
        try:
            prune(self.root, self.settings.keep)
        except FileNotFoundError:
            pass  # someone else has deleted it
        except OSError as error:
            say(f"an older checkpoint could not be deleted ({in_brief(error)}), and stays. The run continues")

    def _snapshot(self, run: RunState) -> None:
        """Save only the weights, unless this is the initial model or the resumed run has saved them already."""
        root = self.root / SNAPSHOTS
        saved = complete_checkpoints(root)[0] if run.step == self._resumed_step else []
        if run.step == 0 or run.step in (snapshot.header.step for snapshot in saved):
            return
        self._write(run, root, lambda folder: save_tensors(policy_tensors(run.policy), folder / TENSORS))

    def _write(self, run: RunState, root: Path, *parts: Callable[[Path], None]) -> bool:
        """Write a checkpoint or snapshot part by part and publish it; returns whether that succeeded on all ranks.

        Raises:
            NonfiniteError: a weight is not finite on any rank.
        """
        if run.ranks.max(not are_finite(policy_tensors(run.policy).values())):
            newest = "no earlier one" if self._saved is None else f"resume=auto continues from {step_name(self._saved)}"
            raise NonfiniteError(
                f"step {run.step}: a weight of the policy is NaN or inf, so no checkpoint is saved; {newest}"
            )
        folder, rank = partial_folder(root, run.step), run.ranks.rank
        files: dict[str, tuple[int, str]] = {}

        def make_empty() -> None:
            if rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)

        def sum_up() -> None:
            files.update(sums_of_share(folder, rank, run.ranks.world_size))

        def publish_whole() -> None:
            if rank == 0:
                flush_written()  # the checkpoint says that the rows up to its step are there
                publish(folder, header)
                self._unsaved.pop(root, None)

        for action in (make_empty, *(partial(part, folder) for part in parts), sum_up):
            if not self._on_all_ranks(run, folder, action):
                return False
        header = Header(
            step=run.step,
            num_ranks=run.ranks.world_size if root == self.root else 0,
            validated_step=run.validated_step,
            score=self._score(run) if root == self.root else None,
            config=self.config,
            identity=self.identity,
            files={name: entry for share in from_all_ranks(files) for name, entry in share.items()},
        )
        return self._on_all_ranks(run, folder, publish_whole)

    def _on_all_ranks(self, run: RunState, folder: Path, action: Callable[[], Any]) -> bool:
        """Run one part of a save; returns whether it succeeded on all ranks. If not, the partial folder is deleted."""
        failure = None
        try:
            action()
        except (OSError, RuntimeError) as error:
            failure = in_brief(error)
        failures = [failure for failure in from_all_ranks(failure) if failure is not None]
        what = f"{'checkpoint' if folder.parent == self.root else 'snapshot'} {step_name(run.step)}"
        if failures and run.ranks.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            self._unsaved[folder.parent] = what
            newest = step_name(self._saved) if self._saved is not None else "none"
            say(f"{what} could not be written ({failures[0]}); newest checkpoint: {newest}. The run continues")
        return not failures

    def _score(self, run: RunState) -> float | None:
        if self.settings.best is None or run.validated_step != run.step:
            return None
        return float(run.ranks.trainer.callback_metrics[self.settings.best])


def _is_multiple(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
