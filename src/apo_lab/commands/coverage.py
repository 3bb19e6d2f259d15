"""`apo coverage`: worked solutions under the top K of one policy."""

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from apo_lab.coverage.oracle import OracleCoverage
from apo_lab.coverage.records import CoverageResult, recall_table
from apo_lightning.common.console import quiet_libraries, say, show
from apo_lightning.evaluation.loading import write_record
from apo_lightning.evaluation.progress import Progress
from apo_lightning.run.choices import typed_overrides
from apo_lightning.run.evaluated_policy import find_evaluated_policy
from apo_lightning.run.trained import Stage


def cover(cfg: DictConfig) -> CoverageResult:
    """Score every token of the solutions in one pass, without an engine.

    Raises:
        ConfigError: something cannot work; raised before any weights are loaded.
    """
    evaluated = find_evaluated_policy(cfg, typed_overrides())
    quiet_libraries(evaluated.output_dir / "coverage.log")
    overrides = {"tokens_per_microbatch": cfg.tokens_per_microbatch, "limit": cfg.limit or cfg.coverage.limit}
    if cfg.data_dir is not None and cfg.coverage.path is None:
        overrides["path"] = str(Path(cfg.data_dir) / f"{cfg.coverage.name}.jsonl")
    coverage: OracleCoverage = instantiate(cfg.coverage, **overrides, _convert_="all")
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
    folder = evaluated.output_dir / f"coverage_{coverage.name}"
    write_record(folder / "coverage.json", result)
    say(
        f"{result.data.num_problems:,} problems of {result.data.num_available:,}; "
        f"{result.num_without_solution:,} without a solution, {result.num_too_long:,} too long"
    )
    show(recall_table(result))
    say(f"coverage.json is in {folder}")
    return result
