"""The model card of an export: README.md with the front matter that the Hugging Face hub reads."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCardData

from apo_lightning.common.files import write_atomically
from apo_lightning.common.formatting import flatten, number

SETTINGS = (
    "trainer.max_steps",
    "prompts_per_step",
    "group_size",
    "prompts_per_minibatch",
    "optimizer.lr",
    "temperature",
    "data.max_completion_tokens",
    "seed",
)
"""Settings of a run that the card lists after those of the algorithm."""
CARD = """---
{front_matter}
---

# {model} trained with {algo} on {data}

A language model for research. apo-lightning trained it by reinforcement learning with verifiable rewards, for
{step} of {max_steps} steps.{averaged}

| | |
|:--|:--|
| base model | {base} |
| training data | {source} |
| reward | {reward} |
| algorithm | {algo} |
{settings}

## Evaluation

{evaluation}

## Known limits

- The model was trained on {data} alone. Other tasks were not measured, and it may have become worse at them.
- The reward judges the final answer. A right answer may follow from wrong reasoning.
- This is one run with one seed. A comparison of methods needs several.
- Nothing was done to make its output safe.
"""


def write_card(run: Path, export: Path, step: int, base_weight: float | int = 0, measured: Sequence[str] = ()) -> None:
    """Write `README.md` into an export of the run at a step; `base_weight` is that of the base in an average.

    `measured` are results of `apo evaluate` on these weights, one a line. A run that was started without Hydra has no
    `.hydra/` and gets no card.
    """
    if (run / ".hydra" / "config.yaml").is_file():
        write_atomically(export / "README.md", model_card(run, step, base_weight, measured).encode())


def model_card(run: Path, step: int, base_weight: float | int = 0, measured: Sequence[str] = ()) -> str:
    """The card, from `.hydra/`, the results measured and, if the run has ended with this step, `summary.json`."""
    config = yaml.safe_load((run / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
    hydra = yaml.safe_load((run / ".hydra" / "hydra.yaml").read_text(encoding="utf-8"))["hydra"]
    choices, flat = hydra["runtime"]["choices"], flatten(config)
    path, hub = config["model"]["path"], config["data"].get("hub") or {}
    keys = [*(key for key in flat if key.startswith("algo.")), *(key for key in SETTINGS if key in flat)]
    front_matter = ModelCardData(
        base_model=path if _is_hub_id(path) else None,
        datasets=[hub["hub_id"]] if _is_hub_data(config["data"]) else None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "rlvr", str(choices["algo"])],
    )
    evaluation = [f"- {line}" for line in (*_held_out(run / "summary.json", step, base_weight), *measured)]
    return CARD.format(
        front_matter=front_matter.to_yaml(),
        model=config["model"]["name"],
        data=choices["data"],
        source=hub["hub_id"] if _is_hub_data(config["data"]) else f"{choices['data']}, made or read locally",
        reward=choices["reward"],
        algo=choices["algo"],
        base=_base(config["model"]),
        step=step,
        max_steps=flat["trainer.max_steps"],
        averaged=f" Its weights are averaged with the base model, which has the weight {base_weight:g}."
        if base_weight
        else "",
        settings="\n".join(f"| `{key}` | `{_resolved(flat, key)}` |" for key in keys),
        evaluation="\n".join(evaluation) or "This model was not evaluated.",
    )


def _base(model: Mapping[str, Any]) -> str:
    """The base by the name that others know; the path of a local folder says nothing to them."""
    path = model["path"]
    if path is None:
        return f"{model['name']}, with random weights"
    return path if _is_hub_id(path) or path.startswith("package://") else f"{model['name']}, from a local folder"


def _is_hub_id(path: str | None) -> bool:
    return path is not None and re.fullmatch(r"[\w.-]+/[\w.-]+", path) is not None and not Path(path).exists()


def _is_hub_data(data: Mapping[str, Any]) -> bool:
    return data.get("path") is None and bool(data.get("hub"))


def _resolved(flat: Mapping[str, str], key: str) -> str:
    """A setting; one that refers to another has that one's value."""
    value = flat[key]
    return flat.get(value[2:-1], value) if value.startswith("${") else value


def _held_out(summary: Path, step: int, base_weight: float | int) -> Iterator[str]:
    """A line for each held-out set, if these weights are those that the run measured last."""
    measured = json.loads(summary.read_bytes()) if summary.is_file() and not base_weight else {"held_out": {}}
    for name, change in measured["held_out"].items():
        if change["step_after"] == step:
            interval = change["change"]
            yield (
                f"{name}, {change['num_problems']} held-out problems × {change['samples_per_problem']}: "
                f"pass@1 {number(change['pass@1_after'])}, before training {number(change['pass@1_before'])}; change "
                f"{interval['mean']:+z.3f}, paired {interval['confidence']:.0%} interval "
                f"[{interval['low']:+z.3f}, {interval['high']:+z.3f}]"
            )
