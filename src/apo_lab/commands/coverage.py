"""`apo coverage`: worked solutions under the top K of one policy, or the right answers that a run lost."""

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from apo_lab.coverage.entrance_records import EntranceResult, entrance_page
from apo_lab.coverage.entrances import EntranceCoverage
from apo_lab.coverage.oracle import OracleCoverage
from apo_lab.coverage.records import CoverageResult, recall_table
from apo_lab.puzzles import PuzzleSource
from apo_lightning.common.console import quiet_libraries, say, show
from apo_lightning.common.files import write_atomically
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import write_record
from apo_lightning.evaluation.progress import Progress
from apo_lightning.run.choices import typed_overrides
from apo_lightning.run.evaluated_policy import EvaluatedPolicy, find_evaluated_policy
from apo_lightning.run.trained import Stage


def cover(cfg: DictConfig) -> CoverageResult | EntranceResult:
    """Measure what the `coverage=` preset names, without an engine.

    Raises:
        ConfigError: something cannot work; raised before any weights are loaded.
    """
    overrides = {"tokens_per_microbatch": cfg.tokens_per_microbatch, "limit": cfg.limit or cfg.coverage.limit}
    if cfg.data_dir is not None and "path" not in cfg.coverage:
        raise ConfigError(f"data_dir={cfg.data_dir}: coverage={cfg.coverage.name} reads no solutions, leave it out")
    if cfg.data_dir is not None and cfg.coverage.path is None:
        overrides["path"] = str(Path(cfg.data_dir) / f"{cfg.coverage.name}.jsonl")
    coverage: OracleCoverage | EntranceCoverage = instantiate(cfg.coverage, **overrides, _convert_="all")
    if isinstance(coverage, EntranceCoverage) and cfg.run is None:
        raise ConfigError(f"coverage={coverage.name} compares a run with the model before training: give run=FOLDER")
    evaluated = find_evaluated_policy(cfg, typed_overrides())
    quiet_libraries(evaluated.output_dir / "coverage.log")
    folder = evaluated.output_dir / f"coverage_{coverage.name}"
    if isinstance(coverage, EntranceCoverage):
        return _entrances(coverage, evaluated, folder)
    return _solutions(coverage, evaluated, folder)


def _entrances(coverage: EntranceCoverage, evaluated: EvaluatedPolicy, folder: Path) -> EntranceResult:
    """Compare the run's policy with the model before its training."""
    run = evaluated.run
    assert run is not None
    source = run.instantiate(run.data, "data")
    if not isinstance(source, PuzzleSource):
        raise ConfigError(
            f"run={run.folder} has data {run.data.get('_target_')}, whose right answers cannot be listed: "
            f"coverage={coverage.name} needs a run of data=locks, countdown or divisors"
        )
    if not source.num_validation:
        raise ConfigError(f"run={run.folder} holds no problems out (data.num_validation is 0): name a run that does")
    policy, sha256 = evaluated.load(evaluated.device)
    base = evaluated.load_reference(evaluated.device)
    template, card = evaluated.spec.prompt_template, evaluated.card(sha256, Stage())
    result, entrances = coverage.measure(policy, base, source, template, card, temperature=run.temperature)
    page = entrance_page(result)
    write_record(folder / "entrances.json", result)
    write_atomically(folder / "entrances.csv", entrances.to_csv(index=False).encode())
    write_atomically(folder / "entrances.md", page.encode())
    say(f"{page}\nentrances.json, .csv (every entrance) and .md (these tables) are in {folder}")
    return result


def _solutions(coverage: OracleCoverage, evaluated: EvaluatedPolicy, folder: Path) -> CoverageResult:
    """Score every token of the solutions in one pass."""
    coverage.check()
    config = evaluated.spec.load_config()
    coverage.check_model(evaluated.spec.name, config.vocab_size, getattr(config, "max_position_embeddings", None))
    problems = coverage.load()
    policy, sha256 = evaluated.load(evaluated.device)
    card = evaluated.card(sha256, Stage())
    with Progress("", "solution tokens") as progress:
        progress.start(0, 0)
        result = coverage.measure(
            policy,
            problems,
            evaluated.spec.prompt_template,
            card,
            lambda done, total: progress.advance(done, total, num_tokens=done),
        )
    write_record(folder / "coverage.json", result)
    say(
        f"{result.data.num_problems:,} problems of {result.data.num_available:,}; "
        f"{result.num_without_solution:,} without a solution, {result.num_too_long:,} too long"
    )
    show(recall_table(result))
    say(f"coverage.json is in {folder}")
    return result
