"""`apo evaluate`: configuration → results of one policy on benchmarks."""

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning.fabric import Fabric
from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from apo_lightning.checkpoints.folder import load_snapshot
from apo_lightning.common.console import quiet_libraries, say, show
from apo_lightning.common.formatting import flatten
from apo_lightning.common.identity import sha256_of_file
from apo_lightning.data.filtering import count_repeated
from apo_lightning.data.prompt_contract import check_prompts_of_model
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.benchmark import Benchmark
from apo_lightning.evaluation.card import result_table, write_card
from apo_lightning.evaluation.encoder import sentence_encoder
from apo_lightning.evaluation.loading import read_result
from apo_lightning.evaluation.records import DataCard, EvaluationResult, ModelCard, SamplingSettings
from apo_lightning.evaluation.results import summarise
from apo_lightning.evaluation.sampler import Sampler, plan_samples
from apo_lightning.evaluation.samples_file import SAMPLES, SamplesFile, read_samples, require_same_identity
from apo_lightning.evaluation.scoring import check_engine
from apo_lightning.metrics.diversity import Encoder
from apo_lightning.model.fingerprint import versions, weights_sha256
from apo_lightning.model.spec import WEIGHTS
from apo_lightning.rollout.engine import RolloutEngine, check_distribution
from apo_lightning.rollout.weight_sync import publish, start_engine
from apo_lightning.run.checks import check_fits
from apo_lightning.run.choices import options_of, typed_overrides
from apo_lightning.run.evaluated_policy import EvaluatedPolicy, find_evaluated_policy
from apo_lightning.run.own_problems import with_own_problems
from apo_lightning.run.recipe import Recipe, tried_reward
from apo_lightning.run.settings import SEED, check_values
from apo_lightning.run.sources import identity_of_code
from apo_lightning.run.trained import Stage
from apo_lightning.types import Prompt

FOR_ALL = ("num_samples", "limit", "max_prompt_tokens", "max_completion_tokens")
"""Settings of each benchmark that the command line may give for all of them."""
ANNOTATIONS = {
    "seed": SEED,
    "temperature": float,
    "top_p": float,
    "token_statistics": bool,
    "tokens_per_microbatch": Annotated[int, Field(ge=1)],
    "samples_per_batch": Annotated[int | None, Field(ge=1)],
    **dict.fromkeys((*FOR_ALL, "support_anchor_size"), int | None),
}
"""What the command line's own settings are."""
NO_JUDGE = ("num_workers",)
"""Arguments of a reward that no verdict depends on."""
SAMPLES_PER_BATCH = {"cpu": 256, "cuda": 4096}
"""By kind of device, where nothing is given."""


def main(cfg: DictConfig) -> None:
    """The command; typed overrides and sweeps decide the folder of its results."""
    overrides = typed_overrides()
    evaluate(with_own_problems(cfg, overrides), overrides, is_swept=HydraConfig.get().mode is RunMode.MULTIRUN)


def evaluate(cfg: DictConfig, overrides: Sequence[str] = (), *, is_swept: bool = False) -> list[EvaluationResult]:
    """Measure one policy on all benchmarks, with one engine; raises `ConfigError` before any weights are loaded.

    The results are also in the output folder; only the first rank returns them. `overrides` are as typed; in a sweep
    those that determine the samples name a folder (`settings_folder`).
    """
    check_values(cfg, ANNOTATIONS)
    evaluated = find_evaluated_policy(cfg, overrides, is_swept=is_swept)
    quiet_libraries(evaluated.output_dir / "evaluate.log")
    engine = Recipe(cfg).engine
    engine.check(evaluated.device)
    engine.check_model(evaluated.spec.load_config(), evaluated.device)
    tasks = prepare_tasks(cfg, evaluated, engine.name)
    fabric = Fabric(
        accelerator=cfg.trainer.accelerator,
        devices=cfg.trainer.devices,
        num_nodes=cfg.trainer.num_nodes,
        strategy="ddp" if evaluated.world_size > 1 else "auto",  # one process a device, each with the whole model
    )
    with contextlib.ExitStack() as held:
        for closes in (*(task.benchmark.reward for task in tasks), engine):
            held.enter_context(contextlib.closing(closes))
        at_stages = [(stage, [task.at(stage) for task in tasks]) for stage in evaluated.stages]
        fabric.launch()
        # Decided by the first rank: it may finish a stage while another rank reads the folder.
        [is_left, *_] = from_all_ranks([_is_left(stage, own) for stage, own in at_stages])
        left = [at_stage for at_stage, is_one in zip(at_stages, is_left, strict=True) if is_one]
        if left:
            _measure_stages(cfg, evaluated, engine, fabric, left)
    fabric.barrier()  # ranks that the first one has launched end with it
    results = []
    if fabric.global_rank == 0:
        results = [read_result(task.folder / "results.json") for _, own in at_stages for task in own]
        say("")
        show(result_table(results))
        say(f"samples.jsonl, results.json and card.md of each are in {evaluated.output_dir}")
    return results


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


def prepare_tasks(cfg: DictConfig, evaluated: EvaluatedPolicy, engine: str) -> list[Task]:
    """All benchmarks, for the engine of a name; raises `ConfigError` for the first thing that cannot work."""
    check_distribution(cfg.temperature, cfg.top_p)
    benchmarks = [_benchmark(cfg, node) for node in cfg.benchmark.values()]
    for benchmark in benchmarks:
        benchmark.check()
        others = ", ".join(name for name in options_of("benchmark") if name != benchmark.name)
        key, otherwise = "max_completion_tokens", f"choose another benchmark= of {others}"
        check_fits(benchmark, evaluated.spec, f"{benchmark.name}: ", key=key, otherwise=otherwise)
    nodes = cfg.benchmark.values()
    return [_task(cfg, evaluated, one, node.reward, engine) for one, node in zip(benchmarks, nodes, strict=True)]


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


def _task(cfg: DictConfig, evaluated: EvaluatedPolicy, benchmark: Benchmark, reward: DictConfig, engine: str) -> Task:
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
    for line in check_prompts_of_model(prompts, evaluated.tokenizer, evaluated.spec):
        say(line)
    tried_reward(benchmark.reward, prompts, evaluated.tokenizer)
    settings = SamplingSettings(
        num_samples=benchmark.num_samples,
        temperature=cfg.temperature,
        top_p=cfg.top_p,
        max_completion_tokens=benchmark.max_completion_tokens,
        seed=cfg.seed,
        samples_per_batch=cfg.samples_per_batch or SAMPLES_PER_BATCH[evaluated.device.type],
        prompt=benchmark.prompt_around(evaluated.tokenizer, template),
        engine=engine,
        reward=describe_reward(reward),
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
        **identity_of_code(OmegaConf.to_container(reward, resolve=True)),
        **{name: value for name, value in evaluated.spec.identity(evaluated.tokenizer).items() if name != WEIGHTS},
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


def _is_left(stage: Stage, tasks: Sequence[Task]) -> bool:
    """True if a stage has unfinished tasks. The final weights are always checked again, with their files."""
    if stage.step is not None and all(_is_measured(task.folder) for task in tasks):
        say(f"step {stage.step}: already measured")
        return False
    return True


def _is_measured(folder: Path) -> bool:
    """Whether a folder has the results of the samples in it."""
    with contextlib.suppress(ConfigError, OSError):
        return read_result(folder / "results.json").samples_sha256 == sha256_of_file(folder / SAMPLES)
    return False


def _measure_stages(
    cfg: DictConfig,
    evaluated: EvaluatedPolicy,
    engine: RolloutEngine,
    fabric: Fabric,
    left: Sequence[tuple[Stage, Sequence[Task]]],
) -> None:
    """Measure the policy at each stage with one engine, into which the weights of each stage are published."""
    [first, *_] = left
    if first[0].step is None:
        (policy, sha256), weights = evaluated.load(fabric.device), {}
    else:
        (policy, weights), sha256 = evaluated.load_stages(fabric.device), None
    # Before the engine, which takes the rest of a GPU's memory.
    reference = evaluated.load_reference(fabric.device) if cfg.support_anchor_size is not None else None
    start_engine(
        engine,
        policy,
        max_model_len=max(task.benchmark.max_model_len for task in first[1]),
        device=fabric.device,
        seed=cfg.seed,
        process=fabric,
    )
    sampler = Sampler(
        engine=engine,
        policy=policy,
        reference=reference,
        token_statistics=cfg.token_statistics,
        tokens_per_microbatch=cfg.tokens_per_microbatch,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        policy_version=1,
    )
    for version, (stage, tasks) in enumerate(left, start=1):
        if stage.snapshot is not None:
            load_snapshot(weights, stage.snapshot)
        if stage.step is not None:
            say(f"step {stage.step}")
        publish(policy.model, engine, version)
        check_engine(
            engine, policy, tasks[0].prompts, max_new_tokens=tasks[0].settings.max_completion_tokens, version=version
        )
        card = evaluated.card(sha256 or weights_sha256(policy), stage)
        for task in tasks:
            _measure(task, replace(sampler, policy_version=version), card)


def _measure(task: Task, sampler: Sampler, card: ModelCard) -> None:
    """Fill the benchmark's samples file; the first rank writes the results."""
    task.folder.mkdir(parents=True, exist_ok=True)
    settings, name = task.settings, task.benchmark.name
    file = SamplesFile(
        task.folder,
        {**task.identity, "dtype": card.dtype, "weights_sha256": card.weights_sha256},
        plan_samples(task.prompts, settings.num_samples, settings.seed, name),
        settings.samples_per_batch,
    )
    with contextlib.closing(file):
        sampler.fill(file, task.benchmark.reward, benchmark=name, settings=settings)
    if sampler.rank > 0:
        return
    result = summarise(
        read_samples(file.path),
        benchmark=name,
        model=card,
        data=task.data,
        settings=settings,
        versions=versions(),
        measure_diversity=task.benchmark.diversity,
        encoder=task.encoder,
    )
    write_card(task.folder, replace(result, samples_sha256=sha256_of_file(file.path)))
