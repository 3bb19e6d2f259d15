"""Configuration → one policy, measured on benchmarks or under worked solutions."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from hydra.utils import instantiate
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerBase

from apo_lightning.console import progress_bars_hidden, quiet_libraries, say, show
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation import Benchmark, OracleCoverage
from apo_lightning.evaluation.card import coverage_table, result_table, write_card
from apo_lightning.evaluation.encoder import sentence_encoder
from apo_lightning.evaluation.engine_check import check_engine
from apo_lightning.evaluation.loading import write_coverage
from apo_lightning.evaluation.progress import Progress, TokenProgress
from apo_lightning.evaluation.records import (
    CoverageResult,
    DataCard,
    EvaluationResult,
    ModelCard,
    SamplingSettings,
)
from apo_lightning.evaluation.results import summarise
from apo_lightning.evaluation.sampler import Sampler, plan_samples
from apo_lightning.evaluation.samples_file import SamplesFile, read_samples, require_same_identity
from apo_lightning.fingerprint import versions, weights_sha256
from apo_lightning.metrics.diversity import Encoder
from apo_lightning.policy import Policy, PolicySpec, describe
from apo_lightning.preflight import check_devices, check_dtype
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.start import start_engine
from apo_lightning.rollout.weight_sync import publish
from apo_lightning.run.trained import TrainedRun, trained_run
from apo_lightning.types import Prompt

MODES = ("samples", "coverage")


def evaluate(cfg: DictConfig, overrides: Sequence[str] = ()) -> list[EvaluationResult | CoverageResult]:
    """Measure one policy.

    Args:
        cfg: composed from `configs/evaluate.yaml`.
        overrides: as typed, to tell a model that was asked for from the default one.

    Returns:
        The results, which also stand in the output folder.

    Raises:
        ConfigError: something cannot work; raised before any weights are loaded.
    """
    if cfg.mode not in MODES:
        raise ConfigError(f"mode is {cfg.mode!r}: choose {' or '.join(MODES)}")
    if cfg.support_anchor_size is not None and not cfg.run:
        raise ConfigError(
            f"support_anchor_size is {cfg.support_anchor_size}, but there is no reference without run=: name a "
            "training run, or leave it null"
        )
    run = trained_run(Path(cfg.run), overrides) if cfg.run else None
    spec: PolicySpec = instantiate(run.model if run else cfg.model, _convert_="all")
    device, world_size = check_devices(cfg.trainer.accelerator, cfg.trainer.devices, cfg.trainer.num_nodes)
    compute_dtype = spec.dtype(device)
    check_dtype(device, compute_dtype)
    output_dir = _output_dir(cfg, spec, run)
    quiet_libraries(output_dir / "evaluate.log")
    tokenizer = spec.load_tokenizer()
    context = _Context(cfg=cfg, spec=spec, run=run, tokenizer=tokenizer, output_dir=output_dir)
    if cfg.mode == "coverage":
        return [_measure_coverage(context, device, compute_dtype)]

    tasks = _tasks(context)
    engine: RolloutEngine = instantiate(cfg.engine)
    engine.check(device)
    fabric = _launch(cfg, device, world_size)
    policy = _load_policy(context, spec, compute_dtype, fabric.device)
    reference = None
    if run is not None and cfg.support_anchor_size is not None:
        began_with: PolicySpec = instantiate(run.reference, _convert_="all")
        reference = _load_policy(context, began_with, compute_dtype, fabric.device)
    card = _model_card(context, policy)
    try:
        start_engine(
            engine,
            policy,
            max_model_len=max(task.benchmark.max_prompt_tokens + task.settings.max_completion_tokens for task in tasks),
            device=fabric.device,
            seed=cfg.seed,
            global_rank=fabric.global_rank,
            local_rank=fabric.local_rank,
            world_size=fabric.world_size,
        )
        publish(policy.model, engine, version=1)
        first = tasks[0]
        check_engine(engine, policy, first.prompts, max_new_tokens=first.settings.max_completion_tokens, version=1)
        done = [_sample(context, task, policy, reference, engine, fabric, card) for task in tasks]
    finally:
        engine.close()
        for task in tasks:
            task.benchmark.reward.close()
    results = [result for result in done if result is not None]
    if results:
        say("")
        show(result_table(results))
        say(f"samples.jsonl, results.json and card.md of each are in {output_dir}")
    return list(results)


@dataclass(frozen=True, kw_only=True)
class _Context:
    """What all parts of an evaluation look at."""

    cfg: DictConfig
    spec: PolicySpec
    run: TrainedRun | None
    tokenizer: PreTrainedTokenizerBase
    output_dir: Path


@dataclass(frozen=True, kw_only=True)
class _Task:
    """One benchmark, read and checked."""

    benchmark: Benchmark
    data: DataCard
    prompts: list[Prompt]
    settings: SamplingSettings
    encoder: Encoder | None
    identity: dict[str, object]
    """What decides the samples, as far as it is known before the weights are."""


def _output_dir(cfg: DictConfig, spec: PolicySpec, run: TrainedRun | None) -> Path:
    """Made here, so that logs have a place."""
    default = run.folder / "evaluation" if run else Path("outputs") / "evaluate" / spec.name
    folder = Path(cfg.output_dir) if cfg.output_dir else default
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _tasks(context: _Context) -> list[_Task]:
    """Every benchmark's problems, templates and golds, looked at before a weight is loaded."""
    cfg = context.cfg
    longest = getattr(context.spec.load_config(), "max_position_embeddings", None)
    for name, value in (("temperature", cfg.temperature), ("samples_per_batch", cfg.samples_per_batch)):
        if value < (0 if name == "temperature" else 1):
            raise ConfigError(f"{name} is {value}: it must be at least {0 if name == 'temperature' else 1}")
    benchmarks = [_benchmark(cfg, node) for node in cfg.benchmark.values()]
    for benchmark in benchmarks:
        benchmark.check()
        if longest is not None and benchmark.max_model_len > longest:
            raise ConfigError(
                f"{benchmark.name}: max_prompt_tokens {benchmark.max_prompt_tokens} + max_completion_tokens "
                f"{benchmark.max_completion_tokens} = {benchmark.max_model_len} does not fit {context.spec.name}, "
                f"which reads {longest} tokens: give max_completion_tokens={longest - benchmark.max_prompt_tokens} "
                "or less"
            )
    tasks = []
    for benchmark, node in zip(benchmarks, cfg.benchmark.values(), strict=True):
        rows, data = benchmark.load()
        prompts = benchmark.prompts(rows, context.tokenizer, context.spec.prompt_template)
        benchmark.reward.check_answers([prompt.answer for prompt in prompts])
        settings = SamplingSettings(
            num_samples=benchmark.num_samples,
            temperature=cfg.temperature,
            top_p=cfg.top_p,
            max_completion_tokens=benchmark.max_completion_tokens,
            seed=cfg.seed,
            samples_per_batch=cfg.samples_per_batch,
            prompt=benchmark.prompt_around(context.tokenizer, context.spec.prompt_template),
            engine=_class_name(cfg.engine),
            reward=_class_name(node.reward),
        )
        encoder = sentence_encoder(benchmark.encoder) if benchmark.encoder else None
        identity = {
            "benchmark": benchmark.name,
            "data": {"num_problems": data.num_problems, "sha256": data.sha256},
            "settings": asdict(settings),
            "token_statistics": cfg.token_statistics,
            "support_anchor_size": cfg.support_anchor_size,
            "versions": versions(),
        }
        require_same_identity(context.output_dir / benchmark.name, identity)
        tasks.append(
            _Task(
                benchmark=benchmark,
                data=data,
                prompts=prompts,
                settings=settings,
                encoder=encoder,
                identity=identity,
            )
        )
    return tasks


def _benchmark(cfg: DictConfig, node: DictConfig) -> Benchmark:
    """The config's own benchmark, under what the command line says of all."""
    overrides = {name: cfg[name] for name in ("num_samples", "limit", "max_completion_tokens") if cfg[name] is not None}
    if cfg.data_dir is not None and node.path is None and node.hub is not None:
        overrides["path"] = str(Path(cfg.data_dir) / f"{node.name}.jsonl")
    return instantiate(node, **overrides, _convert_="all")


def _class_name(node: DictConfig) -> str:
    return str(node._target_).rpartition(".")[2]


def _launch(cfg: DictConfig, device: torch.device, world_size: int) -> Fabric:
    """One process a device, each with the whole model."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    fabric = Fabric(
        accelerator=cfg.trainer.accelerator,
        devices=cfg.trainer.devices,
        num_nodes=cfg.trainer.num_nodes,
        strategy=DDPStrategy(process_group_backend=backend) if world_size > 1 else "auto",
    )
    fabric.launch()
    return fabric


def _load_policy(context: _Context, spec: PolicySpec, compute_dtype: torch.dtype, device: torch.device) -> Policy:
    with progress_bars_hidden():
        model = spec.load_model(context.cfg.seed)
    say(describe(model, compute_dtype))
    policy = Policy(model, context.tokenizer, compute_dtype, spec.stop_tokens)
    return policy.to(device).eval().requires_grad_(False)


def _model_card(context: _Context, policy: Policy) -> ModelCard:
    run = context.run
    return ModelCard(
        name=context.spec.name,
        path=context.spec.path,
        weights_sha256=weights_sha256(policy),
        dtype=str(policy.compute_dtype).removeprefix("torch."),
        algo=run.algo if run else None,
        run=str(run.folder) if run else None,
        overrides=run.overrides if run else (),
    )


def _sample(
    context: _Context,
    task: _Task,
    policy: Policy,
    reference: Policy | None,
    engine: RolloutEngine,
    fabric: Fabric,
    card: ModelCard,
) -> EvaluationResult | None:
    """Fill the benchmark's samples file, and write what it comes to; None on all ranks but the first."""
    cfg, folder = context.cfg, context.output_dir / task.benchmark.name
    folder.mkdir(parents=True, exist_ok=True)
    file = SamplesFile(
        folder,
        {**task.identity, "dtype": card.dtype, "weights_sha256": card.weights_sha256},
        plan_samples(task.prompts, task.settings.num_samples, cfg.seed, task.benchmark.name),
        cfg.samples_per_batch,
    )
    sampler = Sampler(
        engine=engine,
        policy=policy,
        reward=task.benchmark.reward,
        temperature=cfg.temperature,
        top_p=cfg.top_p,
        max_completion_tokens=task.settings.max_completion_tokens,
        token_statistics=cfg.token_statistics,
        tokens_per_microbatch=cfg.tokens_per_microbatch,
        reference=reference,
        anchor_size=cfg.support_anchor_size or 0,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    try:
        sampler.fill(file, Progress(task.benchmark.name, speaks=fabric.is_global_zero))
    finally:
        file.close()
    if not fabric.is_global_zero:
        return None
    result = summarise(
        read_samples(file.path),
        benchmark=task.benchmark.name,
        model=card,
        data=task.data,
        settings=task.settings,
        versions=versions(),
        measure_diversity=task.benchmark.diversity,
        encoder=task.encoder,
    )
    write_card(folder, result)
    return result


def _measure_coverage(context: _Context, device: torch.device, compute_dtype: torch.dtype) -> CoverageResult:
    cfg = context.cfg
    overrides = {"limit": cfg.limit} if cfg.limit is not None else {}
    if cfg.data_dir is not None and cfg.coverage.path is None:
        overrides["path"] = str(Path(cfg.data_dir) / f"{cfg.coverage.name}.jsonl")
    coverage: OracleCoverage = instantiate(
        cfg.coverage, **overrides, tokens_per_microbatch=cfg.tokens_per_microbatch, _convert_="all"
    )
    coverage.check()
    config = context.spec.load_config()
    coverage.check_model(context.spec.name, config.vocab_size, getattr(config, "max_position_embeddings", None))
    problems = coverage.load()
    policy = _load_policy(context, context.spec, compute_dtype, device)
    card = _model_card(context, policy)
    with TokenProgress("solution tokens") as progress:
        result = coverage.result(policy, problems, context.spec.prompt_template, card, progress.advance)
    folder = context.output_dir / f"coverage_{coverage.name}"
    write_coverage(folder / "coverage.json", result)
    say(
        f"{result.num_tokens:,} solution tokens of {result.data.num_problems:,} problems (of "
        f"{result.data.num_available:,}; {result.num_without_solution:,} without a solution, "
        f"{result.num_too_long:,} too long)"
    )
    show(coverage_table(result))
    say(f"coverage.json is in {folder}")
    return result
