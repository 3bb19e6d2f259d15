"""Configuration → results of one policy on benchmarks."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from hydra.utils import instantiate
from lightning.fabric import Fabric
from omegaconf import DictConfig

from apo_lightning.checkpoints import load_snapshot
from apo_lightning.common.console import quiet_libraries, say, show
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.evaluation.card import result_table, write_card
from apo_lightning.evaluation.loading import read_result
from apo_lightning.evaluation.records import EvaluationResult, ModelCard
from apo_lightning.evaluation.results import summarise
from apo_lightning.evaluation.sampler import Sampler, plan_samples
from apo_lightning.evaluation.samples_file import SamplesFile, read_samples
from apo_lightning.evaluation.scoring import check_engine
from apo_lightning.model.fingerprint import versions, weights_sha256
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.start import start_engine
from apo_lightning.rollout.weight_sync import publish
from apo_lightning.run.evaluated_policy import EvaluatedPolicy, find_evaluated_policy
from apo_lightning.run.stages import Stage
from apo_lightning.run.tasks import Task, prepare_tasks


def evaluate(cfg: DictConfig, overrides: Sequence[str] = (), *, is_swept: bool = False) -> list[EvaluationResult]:
    """Measure one policy on all benchmarks, with one engine; raises `ConfigError` before any weights are loaded.

    The results are also in the output folder; only the first rank returns them. `overrides` are as typed; in a sweep
    those that determine the samples name a folder (`settings_folder`).
    """
    evaluated = find_evaluated_policy(cfg, overrides, is_swept=is_swept)
    quiet_libraries(evaluated.output_dir / "evaluate.log")
    engine: RolloutEngine = instantiate(cfg.engine)
    engine.check(evaluated.device)
    engine.check_model(evaluated.spec.load_config(), evaluated.device)
    tasks = prepare_tasks(cfg, evaluated, engine.name)
    fabric = Fabric(
        accelerator=cfg.trainer.accelerator,
        devices=cfg.trainer.devices,
        num_nodes=cfg.trainer.num_nodes,
        strategy="ddp" if evaluated.world_size > 1 else "auto",  # one process a device, each with the whole model
    )
    try:
        at_stages = [(stage, [task.at(stage) for task in tasks]) for stage in evaluated.stages]
        fabric.launch()
        # Decided by the first rank: it may finish a stage while another rank reads the folder.
        [is_left, *_] = from_all_ranks([_is_left(stage, own) for stage, own in at_stages])
        left = [at_stage for at_stage, is_one in zip(at_stages, is_left, strict=True) if is_one]
        if left:
            _measure_stages(cfg, evaluated, engine, fabric, left)
    finally:
        engine.close()
        for task in tasks:
            task.benchmark.reward.close()
    results = []
    if fabric.global_rank == 0:
        results = [read_result(task.folder / "results.json") for _, own in at_stages for task in own]
        say("")
        show(result_table(results))
        say(f"samples.jsonl, results.json and card.md of each are in {evaluated.output_dir}")
    return results


def _is_left(stage: Stage, tasks: Sequence[Task]) -> bool:
    """True if a stage has unfinished tasks. The final weights are always checked again, with their files."""
    if stage.step is not None and all(task.is_finished for task in tasks):
        say(f"step {stage.step}: already measured")
        return False
    return True


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
        anchor_size=cfg.support_anchor_size or 0,
        temperature=cfg.temperature,
        top_p=cfg.top_p,
        token_statistics=cfg.token_statistics,
        tokens_per_microbatch=cfg.tokens_per_microbatch,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
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
        sampler.fill(file, task.benchmark.reward, benchmark=name, max_completion_tokens=settings.max_completion_tokens)
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
    write_card(task.folder, result)
