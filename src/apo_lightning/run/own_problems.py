"""`apo evaluate run=…` on your own problems: the run gives each setting that the benchmark leaves out."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed
from apo_lightning.run.trained import TrainedRun

NUM_SAMPLES = 16
FROM_DATA = ("instruction", "system", "max_prompt_tokens", "max_completion_tokens")
"""Keys of `data` that a benchmark has too."""


def with_own_problems(cfg: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration with its benchmarks filled in from `run`, and with the run's engine where none is typed.

    They are those of `benchmark=`; or the file `data.path`; or, where neither is typed, the problems that the run has
    held out. One that names no `_target_` takes reward, prompt and token limits from the run.

    Raises:
        ConfigError: both are typed, the run held nothing out, or something is to come from a run and there is none.
    """
    is_typed = any(override.lstrip("+~").startswith("benchmark") for override in overrides)
    path = cfg.data.path
    if path is not None and is_typed:
        raise ConfigError(f"data.path={path} is measured in place of benchmark=: leave one of them out")
    run = TrainedRun.read(Path(str(cfg.run))) if cfg.run else None
    named: Mapping[str, Any] = cfg.benchmark
    if path is not None:
        named = {Path(path).stem: {"path": path}}
    elif run is not None and not is_typed:
        named = _held_out(run)
    nodes = {name: _filled_in(name, node, run) for name, node in named.items()}
    found = cfg.copy()
    OmegaConf.set_struct(found, False)
    found.benchmark = nodes
    if run is not None and not any(override.startswith("engine=") for override in overrides):
        found.engine = composed("evaluate", [f"engine={run.engine}"]).engine
    return found


def _held_out(run: TrainedRun) -> dict[str, Any]:
    """A benchmark for each held-out set, by its name."""
    held_out = run.held_out()
    if not held_out:
        raise ConfigError(
            f"run={run.folder} has held no problems out: give data.path=test.jsonl, whose problems are measured with "
            "the run's reward and prompt, or a benchmark="
        )
    return {name: {"source": OmegaConf.to_container(run.config.data, resolve=True)} for name in held_out}


def _filled_in(name: str, node: Any, run: TrainedRun | None) -> Any:
    """The node of a benchmark with what it leaves open."""
    if not isinstance(node, Mapping):
        raise ConfigError(
            f"benchmark.{name} is {node!r}, and a benchmark is a node: begin its file with `# @package benchmark.NAME`"
        )
    if "_target_" in node:
        return node
    if run is None:
        raise ConfigError(
            f"benchmark {name} takes its reward and prompt from a training run: give run=FOLDER, or write them into "
            f"configs/benchmark/{name}.yaml as configs/benchmark/arithmetic.yaml does"
        )
    source, hub = run.recipe.source, run.config.data.get("hub")
    reward = OmegaConf.to_container(run.config.reward, resolve=True)
    run.require_known(without_own_functions(reward, run.folder), "reward", "data")
    return OmegaConf.create(
        {
            "_target_": "apo_lightning.evaluation.benchmark.Benchmark",
            "name": name,
            "path": None,
            "hub": None if "source" in node else hub,
            "num_samples": NUM_SAMPLES,
            **{key: getattr(source, key) for key in FROM_DATA},
            "reward": reward,
            **node,
        }
    )


def without_own_functions(node: Any, run: Path) -> Any:
    """Plain data without the functions of the working directory, which get no arguments from the run's folder."""
    if isinstance(node, list):
        return [without_own_functions(child, run) for child in node]
    if not isinstance(node, dict):
        return node
    if node.keys() == {"_target_", "_partial_"} and node["_partial_"] is True and _is_own_code(node["_target_"], run):
        return None
    return {key: without_own_functions(child, run) for key, child in node.items()}


def _is_own_code(target: str, run: Path) -> bool:
    """Whether a dotted name lies in a file of the working directory, and not in the folder of the run that names it."""
    parts = target.split(".")
    files = (Path.cwd().joinpath(*parts[:end]) for end in range(1, len(parts)))
    sources = (source for file in files for source in (file.with_suffix(".py"), file / "__init__.py"))
    found = [source.resolve() for source in sources if source.is_file()]
    of_path = importlib.util.find_spec(parts[0])
    shadows = of_path is not None and of_path.origin is not None and not Path(of_path.origin).is_relative_to(Path.cwd())
    return bool(found) and not shadows and not any(source.is_relative_to(run.resolve()) for source in found)
