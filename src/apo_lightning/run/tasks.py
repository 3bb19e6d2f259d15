"""Benchmarks as configured: read, put into prompts and checked before any weights are loaded."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from apo_lightning.common.console import say
from apo_lightning.common.formatting import flatten
from apo_lightning.data.filtering import count_repeated
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.benchmark import Benchmark
from apo_lightning.evaluation.encoder import sentence_encoder
from apo_lightning.evaluation.records import DataCard, SamplingSettings
from apo_lightning.evaluation.samples_file import require_same_identity
from apo_lightning.metrics.diversity import Encoder
from apo_lightning.model.fingerprint import versions
from apo_lightning.rewards.reward import check_prompts
from apo_lightning.rollout.engine import check_distribution
from apo_lightning.run.choices import options_of
from apo_lightning.run.evaluated_policy import EvaluatedPolicy
from apo_lightning.run.stages import Stage
from apo_lightning.types import Prompt

FOR_ALL = ("num_samples", "limit", "max_completion_tokens")
"""Settings of each benchmark that the command line may give for all of them."""
COUNTS = (*FOR_ALL, "samples_per_batch", "support_anchor_size")
"""Settings of the command line that are whole numbers, or null."""
NO_JUDGE = ("num_workers",)
"""Arguments of a reward that no verdict depends on."""
SAMPLES_PER_BATCH = {"cpu": 256, "cuda": 4096}
"""By kind of device, where nothing is given."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One benchmark, ready to be sampled."""

    benchmark: Benchmark
    data: DataCard
    prompts: list[Prompt]
    settings: SamplingSettings
    encoder: Encoder | None
    folder: Path
    identity: dict[str, object]
    """Settings that decide the samples, as far as they are known before the weights are."""

    def at(self, stage: Stage) -> "Task":
        """The same samples at a stage of training; raises `ConfigError` if its folder holds another evaluation."""
        folder = self.folder.parent / stage.folder / self.folder.name
        task = replace(self, folder=folder, identity={**self.identity, **stage.identity})
        require_same_identity(task.folder, task.identity)
        return task

    @property
    def is_finished(self) -> bool:
        """True where its results are there."""
        return (self.folder / "results.json").is_file()


def prepare_tasks(cfg: DictConfig, evaluated: EvaluatedPolicy, engine: str) -> list[Task]:
    """All benchmarks, for the engine of a name; raises `ConfigError` for the first thing that cannot work."""
    samples_per_batch = cfg.samples_per_batch
    if samples_per_batch is None:
        samples_per_batch = SAMPLES_PER_BATCH[evaluated.device.type]
    for name, value, lowest in (
        ("temperature", cfg.temperature, 0),
        ("top_p", cfg.top_p, 0),
        ("samples_per_batch", samples_per_batch, 1),
        ("tokens_per_microbatch", cfg.tokens_per_microbatch, 1),
    ):
        if value is None or value < lowest:
            raise ConfigError(f"{name} is {value}: it must be at least {lowest}")
    check_distribution(cfg.temperature, cfg.top_p)
    benchmarks = [_benchmark(cfg, node) for node in cfg.benchmark.values()]
    for benchmark in benchmarks:
        benchmark.check()
        _check_length(benchmark, evaluated)
    return [
        _task(cfg, evaluated, benchmark, engine, describe_reward(node.reward), samples_per_batch)
        for benchmark, node in zip(benchmarks, cfg.benchmark.values(), strict=True)
    ]


def describe_reward(node: DictConfig) -> str:
    """The class of a reward and its arguments.

    Example:
        >>> describe_reward(DictConfig({"_target_": "apo_lightning.rewards.NumericReward", "take": "first"}))
        'NumericReward(take=first)'
    """
    container: Any = OmegaConf.to_container(node, resolve=True)
    given = flatten({key: value for key, value in container.items() if key not in ("_target_", *NO_JUDGE)})
    arguments = ", ".join(f"{key}={value}" for key, value in given.items())
    return f"{str(node._target_).rpartition('.')[2]}({arguments})"


def _benchmark(cfg: DictConfig, node: DictConfig) -> Benchmark:
    """The config's own benchmark, under what the command line says of all."""
    overrides = {name: cfg[name] for name in FOR_ALL if cfg[name] is not None}
    if cfg.data_dir is not None and node.path is None and node.hub is not None:
        overrides["path"] = str(Path(cfg.data_dir) / f"{node.name}.jsonl")
    return instantiate(node, **overrides, _convert_="all")


def _check_length(benchmark: Benchmark, evaluated: EvaluatedPolicy) -> None:
    longest = getattr(evaluated.spec.load_config(), "max_position_embeddings", None)
    if longest is not None and benchmark.max_model_len > longest:
        room = longest - benchmark.max_prompt_tokens
        others = ", ".join(name for name in options_of("benchmark") if name != benchmark.name)
        remedy = f"give max_completion_tokens={room} or less" if room > 0 else f"choose another benchmark= of {others}"
        raise ConfigError(
            f"{benchmark.name}: max_prompt_tokens {benchmark.max_prompt_tokens} + max_completion_tokens "
            f"{benchmark.max_completion_tokens} = {benchmark.max_model_len} does not fit {evaluated.spec.name}, which "
            f"reads {longest} tokens: {remedy}"
        )


def _task(
    cfg: DictConfig, evaluated: EvaluatedPolicy, benchmark: Benchmark, engine: str, reward: str, samples_per_batch: int
) -> Task:
    rows, data = benchmark.load()
    if repeated := count_repeated(rows):
        say(f"{benchmark.name}: {repeated}")
    if cfg.temperature == 0 and benchmark.num_samples > 1:
        say(
            f"{benchmark.name}: at temperature=0 the {benchmark.num_samples} samples of a problem are equal, and "
            "pass@k is pass@1: give num_samples=1"
        )
    template = evaluated.spec.prompt_template
    prompts = benchmark.prompts(rows, evaluated.tokenizer, template)
    check_prompts(benchmark.reward, prompts)
    settings = SamplingSettings(
        num_samples=benchmark.num_samples,
        temperature=cfg.temperature,
        top_p=cfg.top_p,
        max_completion_tokens=benchmark.max_completion_tokens,
        seed=cfg.seed,
        samples_per_batch=samples_per_batch,
        prompt=benchmark.prompt_around(evaluated.tokenizer, template),
        engine=engine,
        reward=reward,
        stop_tokens=tuple(evaluated.spec.stop_tokens),
        support_anchor_size=cfg.support_anchor_size,
        encoder=benchmark.encoder,
    )
    identity: dict[str, object] = {
        "benchmark": benchmark.name,
        "data": {"num_problems": data.num_problems, "sha256": data.sha256},
        "settings": asdict(settings),
        "token_statistics": cfg.token_statistics,
        "versions": versions(),
    }
    return Task(
        benchmark=benchmark,
        data=data,
        prompts=prompts,
        settings=settings,
        encoder=sentence_encoder(benchmark.encoder) if benchmark.encoder else None,
        folder=evaluated.output_dir / benchmark.name,
        identity=identity,
    )
