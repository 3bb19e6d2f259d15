"""The commands of `apo`. Other packages add theirs with entry points of the group `apo_lightning.commands`."""

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from apo_lightning.common.importing import no_garbage_searched
from apo_lightning.errors import ConfigError

ENTRY_POINTS = "apo_lightning.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command and the contents of its help page."""

    name: str
    summary: str
    """One line of at most 67 characters."""
    work: str
    """`module:function`, imported when the command runs. Its argument is the composed configuration, or the list of
    typed arguments if `config` is None."""
    config: str | None
    """The primary configuration, such as `train`; None: the command parses its arguments itself."""
    details: str
    actions: Mapping[str, str] = field(default_factory=dict)
    """What the command can do, by the word after its name: `apo paper plan` sets the key `action` to `plan`. Without
    such a word the configuration's own `action` is done."""
    axes: Mapping[str, str] = field(default_factory=dict)
    """Groups of options that the command reads, each with what it sets."""
    settings: tuple[str, ...] = ()
    """The keys that matter most; their defaults and comments are read from the configuration."""
    examples: tuple[str, ...] = ()
    """Command lines, of at most 78 characters."""

    def load(self) -> Callable[[Any], Any]:
        """Import the function that does the work."""
        module, _, function = self.work.partition(":")
        with no_garbage_searched():
            return getattr(importlib.import_module(module), function)

    def overrides(self, arguments: Sequence[str]) -> list[str]:
        """The arguments as overrides, a first word of `actions` as `action=…`; raises `ConfigError` on another word."""
        first, *rest = arguments or ("",)
        if first in self.actions:
            return [f"action={first}", *rest]
        if self.actions and first and "=" not in first and not first.startswith(("-", "~")):
            raise ConfigError(f"apo {self.name} {first}: choose one of {', '.join(self.actions)}")
        return [*arguments]


TRAIN_AXES = {
    "algo": "advantage, loss and aggregation",
    "model": "weights, prompt template, dtype",
    "policy": "train all weights, or low-rank adapters",
    "data": "problems, instruction, length limits",
    "reward": "the verdict on a completion",
    "engine": "samples the completions",
    "trainer": "devices and sharding; on GPUs the sizes of the update too",
    "callbacks": "what a run shows, measures and writes",
    "logger": "loggers besides metrics.csv",
    "experiment": "all settings of a run, by name",
}
TRAIN = Command(
    name="train",
    summary="Train a policy.",
    work="apo_lightning.run.jobs:train_policy",
    config="train",
    details="Samples completions, judges them and updates the policy, step by step. The run's folder, "
    "outputs/<date>/<time>_<algo>_<model>, holds metrics.csv, rollouts/, summary.json, checkpoints/ and "
    "the configuration. -m runs one job for every combination of comma-separated values.",
    axes=TRAIN_AXES,
    settings=(
        "trainer.max_steps",
        "prompts_per_step",
        "group_size",
        "prompts_per_minibatch",
        "tokens_per_microbatch",
        "optimizer.lr",
        "temperature",
        "seed",
        "checkpoint.save_every",
        "resume",
    ),
    examples=(
        "apo train model=tiny algo=grpo trainer.max_steps=3",
        "apo train algo=apo model=llama3b data=gsm8k trainer=gpu",
        "apo train -m algo=apo algo.loss.pull_coef=0,0.05,0.1",
        "apo train experiment=paper/qwen_math7b_apo",
        "apo train hydra.run.dir=outputs/mine resume=auto",
    ),
)
EVALUATE = Command(
    name="evaluate",
    summary="Measure a policy on benchmarks.",
    work="apo_lightning.run.jobs:evaluate_policy",
    config="evaluate",
    details="Samples every problem of each benchmark and judges the samples: pass@k with confidence intervals, maj@n, "
    "entropy, diversity. Writes samples.jsonl, results.json and card.md, one folder a benchmark. A command that was "
    "interrupted continues when it is given again.",
    axes={
        "benchmark": "problems and their number of samples; several: benchmark=[a,b]",
        "model": "the policy, where it is not that of run=",
        "engine": TRAIN_AXES["engine"],
        "trainer": "the devices: each process samples a share of the problems",
    },
    settings=(
        "run",
        "checkpoint",
        "output_dir",
        "num_samples",
        "limit",
        "temperature",
        "top_p",
        "max_completion_tokens",
        "support_anchor_size",
        "data_dir",
    ),
    examples=(
        "apo evaluate run=outputs/2026-01-31/12-00-00_apo_llama3b",
        "apo evaluate benchmark=[aime2024,math500] model=qwen_math7b trainer=gpu",
        "apo evaluate run=outputs/mine checkpoint=all num_samples=4 limit=64",
    ),
)
EXPORT = Command(
    name="export",
    summary="Write a checkpoint as a Hugging Face folder.",
    work="apo_lightning.run.exporting:export",
    config="export",
    details="Gathers a training checkpoint, whatever number of processes wrote it, into one folder that transformers, "
    "vLLM and model.path= load. Adapters are merged into the weights.",
    settings=("run", "checkpoint", "to", "push_to_hub", "dtype"),
    examples=("apo export run=outputs/mine checkpoint=step_000120 dtype=bfloat16",),
)
AVERAGE = Command(
    name="average",
    summary="Average a checkpoint with the model before training.",
    work="apo_lightning.run.exporting:average_with_base",
    config="average",
    details="Writes (1 - w)·θ + w·θ_base as a Hugging Face folder that transformers, vLLM and model.path= load. With "
    "adapters their product is scaled by 1 - w. Measure a folder with apo evaluate model=… model.path=….",
    settings=("run", "weight", "checkpoint", "to", "dtype"),
    examples=(
        "apo average run=outputs/mine weight=0.3 to=outputs/averaged",
        "apo average run=outputs/mine weight=[0.1,0.3,0.5] dtype=bfloat16",
    ),
)
BUILT_IN = (TRAIN, EVALUATE, EXPORT, AVERAGE)


@cache
def commands() -> Mapping[str, Command]:
    """Name → command: the framework's, then those of installed packages; raises `ConfigError` if a name is taken."""
    found = {command.name: command for command in BUILT_IN}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        if point.name in found:
            raise ConfigError(f"two packages bring a command '{point.name}'; the second is {point.value}")
        found[point.name] = point.load()
    return found


def find_command(name: str) -> Command:
    """Find a command by its name; raises `ConfigError`, which names the nearest, if there is none."""
    if name in commands():
        return commands()[name]
    near = difflib.get_close_matches(name, commands())
    raise ConfigError(
        f"there is no command '{name}'; {f'the nearest is {near[0]}' if near else 'there are ' + ', '.join(commands())}"
    )
