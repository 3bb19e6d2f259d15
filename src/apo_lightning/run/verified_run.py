"""What a training run says of itself, made again: each check compares one content of its folder."""

import contextlib
import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedTokenizerBase

from apo_lightning.callbacks.summary import first_and_last, held_out_change, total_verdicts
from apo_lightning.checkpoints.contents import SHARED, load_plain
from apo_lightning.checkpoints.folder import (
    MANIFEST,
    VERSION,
    Checkpoint,
    complete_checkpoints,
    damaged_file,
    snapshots_of,
)
from apo_lightning.checkpoints.origin import CODE, identity_of_run, read_origin
from apo_lightning.checkpoints.resume import FREE, HORIZON, setting_differences
from apo_lightning.common.checks import DiffersError, require_alike
from apo_lightning.common.identity import Identity, differences, read_sealed
from apo_lightning.contracts import Reward, TrainerState, score_samples
from apo_lightning.errors import ConfigError
from apo_lightning.model.fingerprint import versions
from apo_lightning.model.tokenizer import completion_ids
from apo_lightning.rollout.collector import samples_of
from apo_lightning.run.checks import prepare
from apo_lightning.run.choices import composed, options_of
from apo_lightning.run.evaluated_policy import find_evaluated_policy
from apo_lightning.run.own_problems import without_own_functions
from apo_lightning.run.recipe import Recipe
from apo_lightning.run.trained import TrainedRun
from apo_lightning.types import Prompt

STORED = 1e-5
"""How far numbers that were rounded to float32, and their means, may differ; relative and absolute."""
WRITERS = ("ExportPolicy", "RunSummary", "ProgressDisplay", "CompletionTable")
"""Callbacks that no number depends on."""
PASSES = {"before": "samples_per_problem_before", "after": "samples_per_problem"}
"""The two passes in `summary.json`, with the keys of their samples per problem."""
Line = Mapping[str, Any]
"""A completion with its verdict, of a rollout or an evaluation."""


@contextlib.contextmanager
def of_folder() -> Iterator[None]:
    """A `ConfigError` in the block is for what is wrong in the folder, and not on this machine."""
    try:
        yield
    except ConfigError as error:
        raise DiffersError(str(error)) from error


class Subject:
    """The folder of a run, or a published one, and what several checks read of it."""

    def __init__(self, cfg: DictConfig, scratch: Path) -> None:
        self.cfg, self.scratch = cfg, scratch
        self.run = TrainedRun.read(Path(str(cfg.run)))
        self.checkpoints: list[Checkpoint] = complete_checkpoints(self.run.folder / "checkpoints")[0]

    @cached_property
    def header(self) -> Mapping[str, Any]:
        """`checkpoint.json` of the newest checkpoint, or the published one."""
        path = [self.run.folder, *(checkpoint.folder for checkpoint in self.checkpoints)][-1] / MANIFEST
        if not path.is_file():
            raise ConfigError("the folder has no checkpoint")
        with of_folder():
            return read_sealed(path, VERSION)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`."""
        return json.loads(self.file("summary.json").read_bytes())

    @cached_property
    def rows(self) -> list[dict[str, float]]:
        """Those of `metrics.csv`."""
        return read_rows(self.file("metrics.csv"))

    @cached_property
    def steps(self) -> dict[int, dict[str, float]]:
        """Step → its row."""
        return {int(row["step"]): row for row in self.rows if "train/reward" in row}

    @cached_property
    def rollouts(self) -> dict[int, list[Line]]:
        """Step → its completions."""
        paths = sorted(self.run.folder.glob("rollouts/step_*.jsonl"))
        return {int(path.stem.removeprefix("step_")): read_lines(path) for path in paths}

    @cached_property
    def recipe(self) -> Recipe:
        """The pieces of the run on this machine."""
        return prepare(self.settings)

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        """The training prompts by id."""
        return {prompt.id: prompt for prompt in self.recipe.data.train_prompts}

    @cached_property
    def settings(self) -> DictConfig:
        """The run's configuration on this command's devices, without what writes or sends anything.

        Raises:
            ConfigError: it names a `_target_` that no option here names.
        """
        if self.run.engine not in options_of("engine"):
            raise ConfigError(f"there is no engine={self.run.engine!r:.60} here")
        own = composed("train", [f"engine={self.run.engine}", "checkpoint.save_every=null"])
        OmegaConf.set_struct(cfg := self.run.config.copy(), False)
        cfg.engine, cfg.checkpoint, cfg.logger, cfg.resume = own.engine, own.checkpoint, {}, None
        names = {name: str(node and node.get("_target_")) for name, node in (cfg.callbacks or {}).items()}
        cfg.callbacks = {
            name: cfg.callbacks[name] for name, target in names.items() if target.rpartition(".")[2] not in WRITERS
        }
        cfg.trainer = {**self.cfg.trainer, "max_steps": cfg.trainer.max_steps, "limit_val_batches": 0}
        plain = plain_settings(cfg)
        self.run.require_known(without_own_functions(plain.pop("reward"), self.run.folder), "reward", "data")
        self.run.require_known(plain)
        return cfg

    def require_same_identity(self, there: Identity, here: Identity, reader: str) -> None:
        """Raise for a content that is not what `reader` has read; code of a package may be that of its version."""
        different = differences(there, here)
        own = [name for name in different if not name.startswith(CODE) or Path(name[len(CODE) + 1 :]).is_file()]
        if own or (different and self.summary["versions"] == versions()):
            raise DiffersError(f"{', '.join(own or different)}: not what {reader} has read")
        if different:
            raise ConfigError(f"{', '.join(different)}: of another version than {reader} has read")

    def file(self, name: str) -> Path:
        """A file of the folder; raises `ConfigError` if it has none of that name."""
        if not (path := self.run.folder / name).is_file():
            raise ConfigError(f"the folder has no {name}")
        return path


def plain_settings(cfg: DictConfig) -> dict[str, Any]:
    """A configuration as nested plain data."""
    return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))


def read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of a `metrics.csv` without empty cells."""
    with path.open(newline="") as file:
        return [{key: float(cell) for key, cell in row.items() if cell} for row in csv.DictReader(file)]


def read_lines(path: Path) -> list[Line]:
    """The records of a file of JSON lines."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# ------------------------------------------------------------------ contents


def files(subject: Subject) -> str:
    """Every file that a sealed record lists, and no other: of the final policy, the checkpoints and the snapshots."""
    found, refused = complete_checkpoints(subject.run.folder / "checkpoints")
    snapshots, also_refused = snapshots_of(subject.run.folder)
    for line in (*refused, *also_refused):
        raise DiffersError(line)
    for checkpoint in (*found, *snapshots):
        if (damaged := damaged_file(checkpoint, checkpoint.header.files)) is not None:
            raise DiffersError(f"{checkpoint.folder.name}/{damaged} has changed since it was written")
    if not subject.run.final.is_dir():
        raise ConfigError("the folder has no final policy")
    with of_folder():
        listed = read_origin(subject.run.final).files
    return f"{len(listed)} of the final policy, and {len(found) + len(snapshots)} checkpoints"


def settings(subject: Subject) -> str:
    """`.hydra/config.yaml`, against the settings in the newest checkpoint."""
    config, saved = subject.run.config, {**subject.header["config"]}
    saved.pop(HORIZON, None)
    own = plain_settings(OmegaConf.masked_copy(config, [str(key) for key in config if key not in FREE]))
    for different in setting_differences(saved, own):
        raise DiffersError(different)
    return f"{len(own)} keys and sections"


def contents(subject: Subject) -> str:
    """Model before training, data and the user's code on this machine, against what the run has read."""
    with of_folder():
        there = {"the run": identity_of_run(subject.run.folder), "its policy": read_origin(subject.run.final).identity}
    with contextlib.suppress(ConfigError):
        there["its checkpoint"] = subject.header["identity"]
    for name, identity in there.items():
        subject.require_same_identity(identity, subject.recipe.identity, name)
    return ", ".join(subject.recipe.identity)


def packages(subject: Subject) -> str:
    """Versions of Python and of the packages; others are no difference, and may explain one."""
    there, here = subject.summary["versions"], versions()
    if different := [f"{name} {there.get(name)}, here {own}" for name, own in here.items() if there.get(name) != own]:
        raise ConfigError("; ".join(different))
    return ", ".join(f"{name} {version}" for name, version in here.items() if version)


def weights(subject: Subject) -> str:
    """The hash of the final policy's weights, against those in the folder."""
    cfg = composed("evaluate")
    cfg.run, cfg.output_dir, cfg.trainer = subject.cfg.run, str(subject.scratch / "weights"), subject.cfg.trainer
    evaluated = find_evaluated_policy(cfg, [])
    _, found = evaluated.load(evaluated.device)
    origin = read_origin(subject.run.final)
    said = {"origin.json": origin.weights_sha256, "summary.json": subject.summary["weights_sha256"]}
    require_alike(said, dict.fromkeys(said, found), "weights_sha256 of ")
    return f"sha256 {found[:16]}"


# ------------------------------------------------------------------ numbers


def metrics(subject: Subject) -> str:
    """`metrics.csv`, against the newest checkpoint and the completions of each step."""
    num_values, said = 0, []
    if subject.checkpoints:
        with of_folder():
            callbacks = load_plain(subject.checkpoints[-1].folder / SHARED)["callbacks"]
        said += callbacks.get("RunSummary", {"steps": {}})["steps"].items()
    for step, lines in subject.rollouts.items():
        said.append((step, {"train/reward": math.fsum(line["reward"] for line in lines) / len(lines)}))
    for step, numbers in said:
        row = subject.steps.get(step, {})
        there = {key: row.get(key) for key in numbers}
        num_values += require_alike(there, numbers, f"step {step}: ", tolerance=STORED)
    if not said:
        raise ConfigError("the folder has neither a checkpoint nor completions of training")
    return f"{num_values} numbers of {len(subject.steps)} steps"


def summary(subject: Subject) -> str:
    """`summary.json`, against `metrics.csv` and its own counts of each held-out problem."""
    said, own = subject.summary, {"steps": max(subject.steps, default=0), "seed": subject.run.seed}
    num_values = require_alike({key: said[key] for key in own}, own)
    again, of_training = first_and_last(subject.steps)["metrics"], said["train"]["metrics"]
    here = {key: again.get(key) for key in of_training}
    num_values += require_alike(of_training, here, "train: ", tolerance=STORED)
    num_values += require_alike(said["verdicts"], total_verdicts(subject.steps), "verdicts: ")
    for name, change in said["held_out"].items():
        passes: dict[int, Any] = {}
        for place, (when, samples) in enumerate(PASSES.items()):
            step, of_pass = change[f"step_{when}"], change[f"metrics_{when}"]
            shares = {problem: counts[place] / change[samples] for problem, counts in change["num_correct"].items()}
            passes[step] = {"samples_per_problem": change[samples], "accuracies": shares, "metrics": of_pass}
            row = {key: value for row in subject.rows if row["step"] == step for key, value in row.items()}
            here = {key: row.get(key) for key in of_pass}
            num_values += require_alike(of_pass, here, f"{name}, step {step}: ", tolerance=STORED)
        num_values += require_alike(change, held_out_change(passes), f"{name}: ", tolerance=STORED)
    return f"{num_values} numbers"


def verdicts(subject: Subject) -> str:
    """Every verdict of `rollouts/`, judged again; problem, prompt and answer, against the data."""
    num_judged, recipe = 0, subject.recipe
    for step, lines in subject.rollouts.items():
        prompts = [subject.prompts[line["prompt_id"]] for line in lines]
        for line, prompt in zip(lines, prompts, strict=True):
            here = {"step": step, "problem": prompt.problem, "prompt": prompt.text, "answer": prompt.answer}
            require_alike({key: line[key] for key in here}, here, f"step {step}, {line['prompt_id']}: ")
        state = recipe.state_at(step)
        num_judged += require_same_verdicts(recipe.reward, recipe.tokenizer, prompts, lines, "completion", state)
    if not num_judged:
        raise ConfigError("the folder has no completions of training")
    return f"{num_judged} verdicts of {len(subject.rollouts)} steps"


def require_same_verdicts(
    reward: Reward, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], lines: Sequence[Line], key: str,
    state: TrainerState,
) -> int:  # fmt: skip
    """Judge completions again, whose texts are under `key`; a verdict that has run out of time is not compared."""
    ids, texts = [ids_of(tokenizer, line, key) for line in lines], [line[key] for line in lines]
    found = score_samples(reward, samples_of(reward, tokenizer, prompts, ids, texts, state))
    judged = [pair for pair in zip(lines, found, strict=True) if "timeout" not in (pair[0]["status"], pair[1].status)]
    for line, verdict in judged:
        here = {name: getattr(verdict, name) for name in ("status", "reward", "extracted")}
        require_alike({name: line[name] for name in here}, here, f"{name_of(line)}: ", tolerance=STORED)
    return len(judged)


def ids_of(tokenizer: PreTrainedTokenizerBase, line: Line, key: str) -> list[int]:
    """The tokens of a stored completion, as the tokenizer divides its text."""
    ids = completion_ids(tokenizer, line[key])
    return ids[:-1] if line["finish_reason"] == "length" and ids[-1:] == [tokenizer.eos_token_id] else ids


def name_of(line: Line) -> str:
    """A completion, for a message."""
    step = f"step {line['step']}, " if "step" in line else ""
    return f"{step}{line['prompt_id']}, sample {line['sample']}"
