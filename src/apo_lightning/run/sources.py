"""The identity of what a run reads besides its settings: its model, its data, and code of its user."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from transformers import PreTrainedTokenizerBase

from apo_lightning.checkpoints.origin import CODE
from apo_lightning.common.formatting import flatten
from apo_lightning.common.identity import sha256_of_file, sha256_of_lines
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.data.rows import Row
from apo_lightning.model.reference import ReferenceSchedule
from apo_lightning.model.spec import PolicySpec
from apo_lightning.types import Prompt


def identity_of_sources(
    model: PolicySpec, tokenizer: PreTrainedTokenizerBase, reference: ReferenceSchedule, data: PromptDataModule
) -> dict[str, str]:
    """What a resumed run must find unchanged."""
    found = model.identity(tokenizer)
    found["the training data"] = _training_data(data.train_prompts)
    found |= identity_of_held_out(data.held_out)
    if reference.path is not None:
        found |= replace(model, path=reference.path, config=None).identity(None, "reference_path")
    return found


def identity_of_held_out(problems: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """What the problems of validation are, before any template; nothing of an empty set."""
    return {f"the problems of validation on {name}": _rows(rows) for name, rows in problems.items() if rows}


def identity_of_code(config: Any) -> dict[str, str]:
    """What each file is that defines a `_target_` of plain data, wherever it lies; not what it imports."""
    found: dict[str, str] = {}
    for target in {value for key, value in flatten(config).items() if key.rpartition(".")[2] == "_target_"}:
        module = inspect.getmodule(get_object(str(target)))
        if module is not None and (file := getattr(module, "__file__", None)):
            found[f"{CODE} {module.__name__.replace('.', '/')}.py"] = sha256_of_file(Path(file))
    return dict(sorted(found.items()))


def _training_data(prompts: Sequence[Prompt]) -> str:
    """Prompts as the model reads them, in their order, wherever they lie and in whatever format."""
    rows = ((p.id, p.problem, p.text, p.token_ids, p.answer, p.columns) for p in prompts)
    return sha256_of_lines(json.dumps(row, default=str) for row in rows)


def _rows(problems: Sequence[Row]) -> str:
    rows = ((r.id, r.problem, r.answer, r.prefill, r.system, r.columns) for r in problems)
    return sha256_of_lines(json.dumps(row, default=str) for row in rows)
