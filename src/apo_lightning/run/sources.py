"""Fingerprints of what a run reads besides its settings: the weights of its model, its data, and a user's code."""

import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.utils import get_object

from apo_lightning.checkpoints.folder import CODE
from apo_lightning.common.formatting import flatten
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.model.reference import ReferenceSchedule
from apo_lightning.model.spec import PolicySpec
from apo_lightning.types import Prompt


def fingerprints(model: PolicySpec, reference: ReferenceSchedule, data: PromptDataModule) -> dict[str, str]:
    """Name → fingerprint of each content that a resumed run must find unchanged."""
    held_out = data.validation_prompts
    found: dict[str, str | None] = {
        **model_source(model.check_weights()),
        "the training data": data_fingerprint(data.train_prompts),
        **{f"the problems of validation on {name}": data_fingerprint(rows) for name, rows in held_out.items()},
    }
    if reference.path is not None:
        found["the weights of reference_path"] = replace(model, path=reference.path, config=None).check_weights()
    return {name: value for name, value in found.items() if value is not None}


def code_fingerprints(config: Any) -> dict[str, str]:
    """Name → fingerprint of each file below the working directory that defines a `_target_` of plain data.

    Installed packages, this one among them, are left out: checkpoints have their versions.
    """
    found: dict[str, str] = {}
    for target in {value for key, value in flatten(config).items() if key.rpartition(".")[2] == "_target_"}:
        file = Path(getattr(inspect.getmodule(get_object(str(target))), "__file__", None) or "/").resolve()
        is_own = file.is_relative_to(Path.cwd()) and file.is_file() and "site-packages" not in file.parts
        if is_own and not file.is_relative_to(Path(__file__).parents[2]):
            found[f"{CODE} {file.relative_to(Path.cwd())}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return dict(sorted(found.items()))


def model_source(fingerprint: str | None) -> dict[str, str]:
    """The entry of `fingerprints` for the model before training."""
    return {} if fingerprint is None else {"the weights of model.path": fingerprint}


def data_fingerprint(prompts: Sequence[Prompt]) -> str:
    """A hash over ids, texts, tokens, answers and columns of prompts in their order.

    It is that of the rows as the model reads them, wherever they lie and in whatever format.
    """
    digest = hashlib.sha256()
    for prompt in prompts:
        row = (prompt.id, prompt.problem, prompt.text, prompt.token_ids, prompt.answer, prompt.columns)
        digest.update(json.dumps(row, default=str).encode() + b"\n")
    return digest.hexdigest()
