"""The sizes in a configuration, read for a run and for its memory plan."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from apo_lightning.callbacks import StepCallback
from apo_lightning.common.formatting import GIB
from apo_lightning.data.sources import ProblemSource
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.model.spec import PolicySpec
from apo_lightning.preflight.checks import requested_devices
from apo_lightning.preflight.cost_plan import CostPlan, plan_cost
from apo_lightning.preflight.memory_plan import MemoryPlan, plan_memory, trainer_bytes
from apo_lightning.preflight.memory_shapes import FLOAT32, GPU_BYTES, EngineSize, ModelShape, RunShape, shape_of
from apo_lightning.preflight.rates import Rates
from apo_lightning.preflight.workload import expected_workload
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.vllm_engine import BLOCK_SIZE, CPU_CACHE_GIB, VLLMEngine
from apo_lightning.step.settings import StepSettings
from apo_lightning.types import Needs


def step_settings(cfg: DictConfig, source: ProblemSource) -> StepSettings:
    """Sizes of a step, those of prompts and completions from the data; raises `ConfigError` if they cannot work."""
    for part in ("loss", "advantage"):
        if cfg.algo.get(part) is None:
            raise ConfigError(
                f"the algorithm has no `{part}`: name one, or begin its YAML with defaults: [grpo, _self_]"
            )
    for name in ("top_p", "top_k", "min_p"):
        # With truncated sampling, π_old/π_rollout and the loss's ratio would mix two distributions.
        if name in cfg:
            raise ConfigError(
                f"{name} is {cfg[name]}: training samples from the whole distribution, which the probabilities of the "
                "loss are of; leave it out (apo evaluate takes top_p)"
            )
    return StepSettings(
        **{field.name: cfg[field.name] for field in fields(StepSettings) if field.name in cfg},
        max_prompt_tokens=source.max_prompt_tokens,
        max_completion_tokens=source.max_completion_tokens,
    )


def callbacks_for(cfg: DictConfig, loss: PolicyLoss) -> list[pl.Callback]:
    """The callbacks of the configuration; diagnostics are given the loss that they will watch."""
    callbacks = [instantiate(node) for node in cfg.callbacks.values() if node is not None]
    for callback in callbacks:
        if isinstance(callback, StepCallback):
            callback.prepare(loss)
    return callbacks


def all_needs(loss: PolicyLoss, callbacks: Sequence[pl.Callback]) -> Needs:
    """The inputs that the loss or any callback needs, for tokens of the step or of its own probes."""
    declared = (getattr(c, name, Needs()) for c in callbacks for name in ("needs", "probe_needs"))
    return functools.reduce(Needs.__or__, declared, loss.needs)


def engine_size(engine: RolloutEngine, settings: StepSettings, *, is_cuda: bool) -> EngineSize:
    """The settings of the engine that determine its memory and time."""
    if isinstance(engine, VLLMEngine):
        return EngineSize(
            name=engine.name,
            num_sequences=engine.max_num_seqs,
            num_forward_tokens=max(engine.max_num_batched_tokens, settings.max_model_len),
            kv_cache_bytes=int(GIB * (engine.kv_cache_gib or (0 if is_cuda else CPU_CACHE_GIB))),
            fills_gpu=is_cuda and engine.kv_cache_gib is None,
            block_tokens=BLOCK_SIZE,
            has_graphs=is_cuda and not engine.enforce_eager,
            num_slices=engine.tensor_parallel_size,
        )
    assert isinstance(engine, TransformersEngine)
    prompts_per_batch = -(-engine.sequences_per_batch // settings.group_size)
    return EngineSize(
        name=engine.name,
        num_sequences=engine.sequences_per_batch,
        num_forward_tokens=prompts_per_batch * settings.max_prompt_tokens,
        kv_cache_bytes=0,
    )


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """The processes that the trainer would start, whether or not their GPUs exist."""

    device: torch.device
    world_size: int
    num_local: int
    """Processes on one machine."""
    strategy: str
    """Name of the strategy: `single`, `ddp` or `fsdp`."""


def rank_layout(cfg: DictConfig) -> RankLayout:
    """The processes that `cfg.trainer` asks for."""
    trainer = cfg.trainer
    device, num_local = requested_devices(trainer.accelerator, trainer.devices)
    world_size = num_local * trainer.num_nodes
    strategy = str(OmegaConf.select(cfg, "trainer.strategy._target_", default=trainer.strategy))
    return RankLayout(
        device=device,
        world_size=world_size,
        num_local=num_local,
        strategy="fsdp" if strategy.endswith("ShardedStrategy") else "ddp" if world_size > 1 else "single",
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The memory plan of a run, with the sizes that it was computed from."""

    name: str
    """The model's name."""
    settings: StepSettings
    ranks: RankLayout
    model: ModelShape
    run: RunShape
    memory: MemoryPlan


def plan_run(cfg: DictConfig) -> Plan:
    """The memory plan of one process of `apo train`; raises `ConfigError` for sizes or a model that cannot work."""
    settings, ranks = step_settings(cfg, instantiate(cfg.data)), rank_layout(cfg)
    spec: PolicySpec = instantiate(cfg.model, _convert_="all")
    model = shape_of(spec.load_config(), instantiate(cfg.policy.lora, _convert_="all"))
    run = run_shape(cfg, settings, ranks, spec)
    return Plan(name=spec.name, settings=settings, ranks=ranks, model=model, run=run, memory=plan_memory(model, run))


def bytes_beside_engine(cfg: DictConfig) -> int:
    """GPU memory that training will claim after its engine has started; 0 if nothing depends on it."""
    engine = instantiate(cfg.engine)
    if rank_layout(cfg).device.type == "cpu" or not isinstance(engine, VLLMEngine) or engine.kv_cache_gib is not None:
        return 0
    plan = plan_run(cfg)
    return trainer_bytes(plan.model, plan.run)


def plan_time(cfg: DictConfig, plan: Plan) -> CostPlan:
    """The time of a step, by phase; raises `ConfigError` if rates cannot be measured or a value is out of range."""
    loss, advantage = instantiate(cfg.algo.loss), instantiate(cfg.algo.advantage)
    critic, dynamic_sampling = instantiate(cfg.algo.get("critic")), instantiate(cfg.algo.get("dynamic_sampling"))
    expected, world_size = instantiate(cfg.expected), plan.ranks.world_size
    work = expected_workload(
        plan.settings,
        loss,
        advantage,
        expected,
        world_size,
        critic=critic,
        dynamic_sampling=dynamic_sampling,
        auxiliary_completions=_auxiliary_completions(cfg),
    )
    rates = instantiate(cfg.rates)
    if not isinstance(rates, Rates):
        if plan.run.is_cuda and not torch.cuda.is_available():
            raise ConfigError(
                "no GPU is here whose rates could be measured, so the time of a step is left out: choose rates=a800 "
                "or rates=h100, or give rates of your own"
            )
        length = round(work.prompt_tokens + work.completion_tokens)
        rates = rates(
            plan.ranks.device,
            torch.float32 if plan.run.compute_bytes == FLOAT32 else torch.bfloat16,
            attended=(plan.model.num_heads, length, plan.model.head_dim),
        )
    return plan_cost(plan.model, plan.run, work, rates)


def _auxiliary_completions(cfg: DictConfig) -> int:
    """Stored completions that each mini-batch runs, over all ranks."""
    term = instantiate(cfg.algo.get("auxiliary"))
    return 0 if term is None else term.completions_per_minibatch


def run_shape(cfg: DictConfig, settings: StepSettings, ranks: RankLayout, spec: PolicySpec) -> RunShape:
    """The settings of a configuration that determine the memory of a run."""
    is_cuda, has_gpu = ranks.device.type == "cuda", torch.cuda.is_available()
    # An absent GPU cannot be asked; all GPUs in question multiply bfloat16.
    is_assumed = is_cuda and not has_gpu and spec.compute_dtype == "auto"
    prompts_per_rank = -(-settings.prompts_per_minibatch // ranks.world_size)
    most = prompts_per_rank * (settings.max_prompt_tokens + settings.group_size * settings.max_completion_tokens)
    most = max(most, -(-_auxiliary_completions(cfg) // ranks.world_size) * settings.max_model_len)
    loss, critic = instantiate(cfg.algo.loss), instantiate(cfg.algo.get("critic"))
    reference = instantiate(cfg.reference)
    return RunShape(
        world_size=ranks.world_size,
        strategy=ranks.strategy,
        is_cuda=is_cuda,
        compute_bytes=2 if is_assumed or spec.dtype(ranks.device) != torch.float32 else FLOAT32,
        has_reference=all_needs(loss, callbacks_for(cfg, loss)).reference,
        gradient_checkpointing=spec.gradient_checkpointing,
        compiles_layers=spec.compile_layers,
        changes_reference=reference.rule is not None,
        mixes_reference=reference.mixes,
        averages_base=instantiate(cfg.averaging).weight > 0,
        # One sequence runs whole, whatever the budget.
        microbatch_tokens=min(max(settings.tokens_per_microbatch, settings.max_model_len), most),
        max_model_len=settings.max_model_len,
        engine=engine_size(instantiate(cfg.engine), settings, is_cuda=is_cuda),
        gpu_bytes=torch.cuda.get_device_properties(0).total_memory if has_gpu else GPU_BYTES,
        num_trained_models=2 if critic is not None and critic.kind == "separate" else 1,
    )
