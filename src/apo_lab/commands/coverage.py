"""`apo coverage`: worked solutions under the top K of one policy, or the right answers that a run lost."""

import contextlib
from pathlib import Path

import pandas as pd
from hydra.utils import instantiate
from omegaconf import DictConfig

from apo_lab.coverage.entrance_records import EntranceResult, SampledEntranceResult, entrance_page, sampled_page
from apo_lab.coverage.entrances import EntranceCoverage
from apo_lab.coverage.oracle import OracleCoverage
from apo_lab.coverage.sampled_entrances import ForcedSampler, SampledEntranceCoverage
from apo_lab.diagnostics.listed_answers import held_out_prompts
from apo_lab.puzzles import PuzzleSource
from apo_lightning.common.console import quiet_libraries, say, show
from apo_lightning.common.files import write_atomically
from apo_lightning.common.phases import PhaseClock
from apo_lightning.contracts import check_prompts
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import write_record
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.weight_sync import start_engine
from apo_lightning.run.choices import typed_overrides
from apo_lightning.run.evaluated_policy import EvaluatedPolicy, find_evaluated_policy
from apo_lightning.run.trained import Stage, TrainedRun
from apo_report.coverage import CoverageResult, recall_table


def cover(cfg: DictConfig) -> CoverageResult | EntranceResult | SampledEntranceResult:
    """Measure what the `coverage=` preset names.

    Raises:
        ConfigError: something cannot work; raised before any weights are loaded.
    """
    overrides = {"tokens_per_microbatch": cfg.tokens_per_microbatch, "limit": cfg.limit or cfg.coverage.limit}
    if cfg.data_dir is not None and "path" not in cfg.coverage:
        raise ConfigError(f"data_dir={cfg.data_dir}: coverage={cfg.coverage.name} reads no solutions, leave it out")
    if cfg.data_dir is not None and cfg.coverage.path is None:
        overrides["path"] = str(Path(cfg.data_dir) / f"{cfg.coverage.name}.jsonl")
    coverage: OracleCoverage | EntranceCoverage | SampledEntranceCoverage
    coverage = instantiate(cfg.coverage, **overrides, _convert_="all")
    if not isinstance(coverage, OracleCoverage) and cfg.run is None:
        raise ConfigError(f"coverage={coverage.name} compares a run with the model before training: give run=FOLDER")
    evaluated = find_evaluated_policy(cfg, typed_overrides())
    quiet_libraries(evaluated.output_dir / "coverage.log")
    folder = evaluated.output_dir / f"coverage_{coverage.name}"
    if isinstance(coverage, OracleCoverage):
        return _solutions(coverage, evaluated, folder)
    run = evaluated.run
    assert run is not None
    if not run.held_out():  # raises where they are not those of its training
        raise ConfigError(f"run={run.folder} holds no problems out (data.num_validation is 0): name a run that does")
    if isinstance(coverage, EntranceCoverage):
        result, entrances = _listed(coverage, run, evaluated)
        page = entrance_page(result)
    else:
        result, entrances = _sampled(coverage, run, evaluated, instantiate(cfg.engine))
        page = sampled_page(result)
    write_record(folder / "entrances.json", result)
    write_atomically(folder / "entrances.csv", entrances.to_csv(index=False).encode())
    write_atomically(folder / "entrances.md", page.encode())
    say(f"{page}\nentrances.json, .csv (every entrance) and .md (these tables) are in {folder}")
    return result


def _listed(
    coverage: EntranceCoverage, run: TrainedRun, evaluated: EvaluatedPolicy
) -> tuple[EntranceResult, pd.DataFrame]:
    """Compare the run's policy with the model before its training."""
    source = run.recipe.source
    if not isinstance(source, PuzzleSource):
        raise ConfigError(
            f"run={run.folder} has data {run.config.data.get('_target_')}, whose right answers cannot be listed: "
            f"coverage={coverage.name} needs a run of data=locks, countdown or divisors"
        )
    policy, sha256 = evaluated.load(evaluated.device)
    base = evaluated.load_reference(evaluated.device)
    template, card = evaluated.spec.prompt_template, evaluated.card(sha256, Stage())
    return coverage.measure(policy, base, source, template, card, temperature=run.temperature)


def _sampled(
    coverage: SampledEntranceCoverage, run: TrainedRun, evaluated: EvaluatedPolicy, engine: RolloutEngine
) -> tuple[SampledEntranceResult, pd.DataFrame]:
    """Compare the run's policy with the model before its training, by samples of both."""
    engine.check(evaluated.device)
    engine.check_model(evaluated.spec.load_config(), evaluated.device)
    source, reward = run.recipe.source, run.recipe.reward
    prompts = held_out_prompts(source, evaluated.tokenizer, evaluated.spec.prompt_template)[: coverage.limit]
    check_prompts(reward, prompts)
    with contextlib.closing(engine), contextlib.closing(reward):
        policy, sha256 = evaluated.load(evaluated.device)
        models = {"base": evaluated.load_reference(evaluated.device), "policy": policy}
        longest = source.max_prompt_tokens + source.max_completion_tokens
        start_engine(engine, policy, max_model_len=longest, device=evaluated.device, seed=evaluated.seed)
        collector = Collector(
            engine=engine,
            reward=reward,
            tokenizer=evaluated.tokenizer,
            run_seed=evaluated.seed,
            max_completion_tokens=source.max_completion_tokens,
            stop_token_ids=policy.stop_token_ids,
            clock=PhaseClock(),
        )
        draw = ForcedSampler(collector, run.temperature)
        return coverage.measure(models, prompts, draw, evaluated.card(sha256, Stage()))


def _solutions(coverage: OracleCoverage, evaluated: EvaluatedPolicy, folder: Path) -> CoverageResult:
    """Score every token of the solutions in one pass."""
    coverage.check()
    config = evaluated.spec.load_config()
    coverage.check_model(evaluated.spec.name, config.vocab_size, getattr(config, "max_position_embeddings", None))
    problems = coverage.load()
    policy, sha256 = evaluated.load(evaluated.device)
    card = evaluated.card(sha256, Stage())
    result = coverage.measure(policy, problems, evaluated.spec.prompt_template, card)
    write_record(folder / "coverage.json", result)
    say(
        f"{result.data.num_problems:,} problems of {result.data.num_available:,}; "
        f"{result.num_without_solution:,} without a solution, {result.num_too_long:,} too long"
    )
    show(recall_table(result))
    say(f"coverage.json is in {folder}")
    return result
