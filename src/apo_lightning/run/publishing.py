"""`apo publish`: a run's policy as a folder for others, with a model card and what its numbers can be checked by."""

import csv
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

from huggingface_hub import EvalResult, HfApi
from omegaconf import DictConfig, OmegaConf

from apo_lightning.checkpoints.folder import MANIFEST, complete_checkpoints
from apo_lightning.checkpoints.origin import OF_RUN, read_origin, write_origin
from apo_lightning.common.console import say
from apo_lightning.common.files import publish_folder
from apo_lightning.common.formatting import as_cell
from apo_lightning.common.model_card import model_card
from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.evaluation.card import card
from apo_lightning.evaluation.loading import read_result
from apo_lightning.evaluation.records import EvaluationResult
from apo_lightning.metrics.intervals import CONFIDENCE
from apo_lightning.run.trained import EVIDENCE, TrainedRun

HUB = "hub:"
OF_EVALUATION = ("evaluation.json", "samples.jsonl", "results.json", "card.md")


def publish(cfg: DictConfig) -> None:
    """Write the folder `to`, or upload it to `hub:USER/NAME`, which exists.

    Raises:
        ConfigError: the run has no intact final policy, the folder exists, or the upload fails.
    """
    if not cfg.to:
        raise ConfigError("to is null: name a new folder, or hub:USER/NAME")
    run, to = TrainedRun.read(Path(str(cfg.run))), str(cfg.to)
    if run.is_published:
        raise ConfigError(f"run={cfg.run} is published already: copy the folder")
    _ = run.final_model  # intact, and of the end of the run
    if to.startswith(HUB):
        with tempfile.TemporaryDirectory() as folder:
            _write(run, Path(folder), f"hf download {to.removeprefix(HUB)} --local-dir FOLDER && apo verify run=FOLDER")
            try:
                HfApi().upload_folder(repo_id=to.removeprefix(HUB), folder_path=folder, commit_message="apo publish")
            except (OSError, ValueError, RuntimeError) as error:
                raise ConfigError(f"to={to}: the hub has not taken it ({in_brief(error)})") from error
    else:
        if (folder := Path(to)).exists():
            raise ConfigError(f"to={to} exists: remove it, or name another folder")
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write(run, partial, f"apo verify run={shlex.quote(to)}")
        publish_folder(partial, folder)
    say(f"{cfg.run} is published in {to}")


def _write(run: TrainedRun, to: Path, command: str) -> None:
    """Fill an empty folder; `command` verifies it."""
    origin = read_origin(run.final)
    for name in origin.files:
        _copy(run.final / name, to / name)
    evidence = to / EVIDENCE
    for name in (".hydra/config.yaml", ".hydra/overrides.yaml", OF_RUN, "summary.json", "metrics.csv"):
        if (run.folder / name).is_file():
            _copy(run.folder / name, evidence / name)
    choices = {"algo": run.algo, "engine": run.engine}  # the rest of Hydra's file has paths of this machine
    OmegaConf.save(OmegaConf.create({"hydra": {"runtime": {"choices": choices}}}), evidence / ".hydra" / "hydra.yaml")
    (evidence / "command.txt").write_text(f"{shlex.join(['apo', 'train', *run.overrides])}\n")
    if checkpoints := complete_checkpoints(run.folder / "checkpoints")[0]:
        _copy(checkpoints[-1].folder / MANIFEST, evidence / MANIFEST)
    found = []
    for path in sorted(run.folder.glob("evaluation/**/results.json")):
        for name in OF_EVALUATION:
            _copy(path.with_name(name), evidence / path.with_name(name).relative_to(run.folder))
        found.append(read_result(path))
    (to / "README.md").write_bytes(
        model_card(
            cast("dict[str, Any]", OmegaConf.to_container(run.config, resolve=True)),
            step=origin.step,
            sha256=origin.weights_sha256,
            sections=[
                *(card(result).replace("# ", "## ", 1).strip() for result in found),
                f"## How it was made\n\n```console\n$ {shlex.join(['apo', 'train', *run.overrides])}\n```",
                f"## How to check it\n\n```console\n$ {command}\n```\n\nSettings, metrics, samples: `{EVIDENCE}/`.",
            ],
            results=[each for result in found for each in _index_entries(result)],
        )
    )
    write_origin(to, step=origin.step, weights_sha256=origin.weights_sha256, identity=origin.identity)


def _index_entries(result: EvaluationResult) -> list[EvalResult]:
    n = result.settings.num_samples
    measured = {"confidence": CONFIDENCE, "problems": result.data.num_problems, "samples": n}
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=result.benchmark,
            dataset_name=result.title,
            metric_type=name,
            metric_value=found.value,
            metric_args={"low": found.low, "high": found.high, **measured},
        )
        for name in dict.fromkeys(("pass@1", f"pass@{n}", f"maj@{n}"))
        if (found := result.metrics.get(name)) is not None
    ]


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file, to.open("w", newline="", encoding="utf-8") as copied:
            csv.writer(copied).writerows(map(as_cell, row) for row in csv.reader(file))
    else:
        to.write_bytes(path.read_bytes())
