"""`apo exact`: pass@k of a puzzle without samples, at the end of a run or along it."""

import shutil

from omegaconf import DictConfig

from apo_lab.diagnostics.exact_coverage import SUPPORT, ExactCoverage, held_out_prompts
from apo_lab.puzzles.source import PuzzleSource
from apo_lightning.checkpoints import load_snapshot
from apo_lightning.common.console import quiet_libraries, say
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import typed_overrides
from apo_lightning.run.evaluated_policy import find_evaluated_policy


def measure_exactly(cfg: DictConfig) -> None:
    """Measure the held-out problems of the run's own puzzle, teacher-forced; no engine, no samples.

    Writes what `ExactCoverage` writes during training, below `exact_<puzzle>`; the support is that of the model that
    the run began with, where the run has left it.

    Raises:
        ConfigError: it is no run, or one on no puzzle.
    """
    evaluated = find_evaluated_policy(cfg, typed_overrides())
    quiet_libraries(evaluated.output_dir / "exact.log")
    run = evaluated.run
    source = run.instantiate(run.data, "data") if run else None
    if run is None or not isinstance(source, PuzzleSource):
        raise ConfigError(
            "apo exact measures a run on the puzzle that it was trained on: give run=, a run of data=locks, "
            "countdown or divisors"
        )
    prompts = held_out_prompts(source, evaluated.tokenizer, evaluated.spec.prompt_template)
    coverage = ExactCoverage(source.puzzle, tokens_per_microbatch=cfg.tokens_per_microbatch)
    folder = evaluated.output_dir / f"exact_{source.name}"
    support = run.folder / "exact" / SUPPORT
    if support.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(support, folder / SUPPORT)
    for stage in evaluated.stages:
        if stage.step is None:
            policy, _ = evaluated.load(evaluated.device)
        else:
            policy, weights = evaluated.load_stages(evaluated.device)
            if stage.snapshot is not None:
                load_snapshot(weights, stage.snapshot)
        metrics = coverage.score(policy, prompts, stage.step or 0, folder, temperature=cfg.temperature)
        shown = "  ".join(f"pass@{k} {metrics[f'pass@{k}']:.4f}" for k in (1, 8, 64))
        say(f"{'final' if stage.step is None else f'step {stage.step}':<10} {shown}  alive {metrics['alive']:.3f}")
    say(f"metrics.jsonl and the log-probs are in {folder}")
