"""A training checkpoint, of any number of ranks, → a Hugging Face folder, as it is or averaged with the base."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from omegaconf import DictConfig, ListConfig
from transformers import AutoModelForCausalLM

from apo_lightning.callbacks.model_card import write_card
from apo_lightning.checkpoints.folder import TENSORS, Checkpoint, best_of, complete_checkpoints, damaged_file
from apo_lightning.checkpoints.run_state import policy_tensors
from apo_lightning.checkpoints.tensors import load_tensors
from apo_lightning.common.console import progress_bars_hidden, quiet_libraries, say
from apo_lightning.common.files import publish_folder
from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.evaluation.card import in_one_line
from apo_lightning.evaluation.loading import read_result
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.model.policy import Policy
from apo_lightning.parts.averaging import average, base_weights
from apo_lightning.run.trained import TrainedRun, trained_run

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def export(cfg: DictConfig) -> Path:
    """Load a checkpoint into the run's model, write the model, and return its folder; raises `ConfigError`.

    With `push_to_hub` the folder is also uploaded.
    """
    if cfg.push_to_hub is not None:
        check_hub(cfg.push_to_hub)
    run, checkpoint = find_trained(cfg)
    to = Path(cfg.to) if cfg.to is not None else run.folder / "exported" / checkpoint.folder.name
    write_averages(cfg, run, checkpoint, {to: 0})
    if cfg.push_to_hub is not None:
        push(to, cfg.push_to_hub)
    return to


def check_hub(repo: str) -> None:
    """Raise `ConfigError` for a name that no repository can have, or without a token; before weights are loaded."""
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"push_to_hub={repo}: {in_brief(error)}") from error
    if get_token() is None:
        raise ConfigError(f"push_to_hub={repo}: there is no token for the hub: set HF_TOKEN, or run hf auth login")


def push(folder: Path, repo: str) -> None:
    """Upload an export to a repository of the Hugging Face hub, which is created, private, if it does not exist."""
    try:
        url = HfApi().create_repo(repo, private=True, exist_ok=True)
        HfApi().upload_folder(repo_id=repo, folder_path=folder, commit_message="Export by apo-lightning")
    except Exception as error:  # errors of the connection have no class of the client's own
        raise ConfigError(
            f"push_to_hub={repo}: {in_brief(error)}; the export is complete: hf upload {repo} {folder} tries again"
        ) from error
    say(f"uploaded to {url}")


def average_with_base(cfg: DictConfig) -> list[Path]:
    """Write (1 − w)·θ + w·θ_base for each weight w, and return the folders; raises `ConfigError`.

    Source: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv 2109.01903), Eq. 1.
    """
    weights = list(cfg.weight) if isinstance(cfg.weight, ListConfig) else [cfg.weight]
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise ConfigError(f"weight is {weight}: give the weight of the model before training, from 0 to 1")
    run, checkpoint = find_trained(cfg)
    root = Path(cfg.to) if cfg.to is not None else run.folder / "averaged" / checkpoint.folder.name
    is_single = cfg.to is not None and len(weights) == 1
    folders = {root if is_single else root / f"w{weight:g}": weight for weight in weights}
    write_averages(cfg, run, checkpoint, folders)
    return list(folders)


def write_averages(
    cfg: DictConfig, run: TrainedRun, checkpoint: Checkpoint, folders: Mapping[Path, float | int]
) -> None:
    """Write the model at a checkpoint to each folder, averaged with the base that has the folder's weight."""
    for folder in folders:
        if folder.exists():
            raise ConfigError(f"to={folder} exists: remove it, or name another folder")
    quiet_libraries(run.folder / "export.log")
    policy = untrained_policy(run)
    base = base_weights(policy.model) if any(folders.values()) else {}
    for folder, weight in folders.items():
        load_tensors(policy_tensors(policy), checkpoint.folder / TENSORS)
        average(dict(policy.model.named_parameters()), base, weight)
        measured = list(evaluations_of(weights_sha256(policy), run.folder / "evaluation", cfg.dtype))
        write(policy, folder, cfg.dtype)
        write_card(run.folder, folder, checkpoint.header.position.step, weight, measured)
        with_base = f", with weight {weight:g} of the base," if weight else ""
        say(f"{checkpoint.folder.name} of {cfg.run}{with_base} is in {folder}")


def evaluations_of(sha256: str, folder: Path, dtype: str) -> Iterator[str]:
    """A line for each result of `apo evaluate` below the folder that measured weights with this hash."""
    rounded = "" if dtype == "float32" else f"; measured before the weights were rounded to {dtype}"
    for path in sorted(folder.rglob("results.json")):
        try:
            result = read_result(path)
        except ConfigError as error:
            say(f"not in the model card: {error}")
            continue
        if result.model.weights_sha256 == sha256:
            yield in_one_line(result) + rounded


def find_trained(cfg: DictConfig) -> tuple[TrainedRun, Checkpoint]:
    """The run and its intact checkpoint, with `run`, `checkpoint` and `dtype` of a command; raises `ConfigError`."""
    if cfg.dtype not in DTYPES:
        raise ConfigError(f"dtype is {cfg.dtype}: choose {' or '.join(DTYPES)}")
    run = trained_run(Path(str(cfg.run)), ())
    checkpoint = _checkpoint(run.folder, cfg.checkpoint)
    if (damaged := damaged_file(checkpoint, sorted(checkpoint.header.files))) is not None:
        raise ConfigError(f"checkpoint {checkpoint.folder} is damaged: {damaged} has changed; export another")
    return run, checkpoint


def untrained_policy(run: TrainedRun) -> Policy:
    """The run's policy as it was before training, with its adapters if it has any."""
    spec = run.instantiate(run.reference, "model")
    with progress_bars_hidden():
        model = spec.load_model(run.seed)
    lora = run.instantiate(run.lora, "policy")
    if lora is not None:
        lora.attach(model, run.seed)
    return Policy(model, spec.load_tokenizer(), model.dtype, spec.stop_tokens)


def write(policy: Policy, to: Path, dtype: str) -> None:
    """Write a policy as a Hugging Face folder, adapters merged; it has its name once it is complete."""
    partial = to.with_name(f".{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    policy.save_pretrained(partial)
    if dtype != "float32":
        _round(partial, DTYPES[dtype])
    publish_folder(partial, to)


def _round(folder: Path, dtype: torch.dtype) -> None:
    """Weights and `config.json` of an exported model in another dtype; adapters are merged already."""
    with progress_bars_hidden():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        for file in folder.glob("*.safetensors*"):
            file.unlink()  # the mapping of a loaded file stays valid; there may be fewer shards
        model.save_pretrained(folder)


def _checkpoint(run: Path, name: str) -> Checkpoint:
    checkpoints, refused = complete_checkpoints(run / "checkpoints")
    for line in refused:
        say(f"skipped: {line}")
    choices = {checkpoint.folder.name: checkpoint for checkpoint in checkpoints}
    best = best_of(checkpoints)
    if checkpoints:
        choices["newest"] = checkpoints[-1]
    if best is not None:
        choices["best"] = best
    if name not in choices:
        has = ", ".join(choices) or "no checkpoint, but perhaps final/"
        raise ConfigError(f"checkpoint={name}: {run} has {has}")
    return choices[name]
