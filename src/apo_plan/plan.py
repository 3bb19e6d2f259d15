"""The plan of a run: the sizes in its configuration, and the memory and time that follow from them."""

from dataclasses import dataclass

import torch
from hydra.utils import instantiate

from apo_lightning.common.formatting import GIB
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.vllm_engine import CPU_CACHE_GIB, VLLMEngine
from apo_lightning.run.recipe import Recipe
from apo_lightning.step.settings import StepSettings
from apo_plan.memory_plan import MemoryPlan, plan_memory
from apo_plan.rates import Rates
from apo_plan.shapes import FLOAT32, GPU_BYTES, EngineSize, ModelShape, RunShape, shape_of
from apo_plan.time_plan import TimePlan, plan_time


def engine_size(engine: RolloutEngine, settings: StepSettings, *, is_cuda: bool) -> EngineSize:
    """The settings of the engine that determine its memory and time."""
    if isinstance(engine, VLLMEngine):
        return EngineSize(
            name=engine.name,
            num_sequences=engine.max_num_seqs,
            num_forward_tokens=max(engine.max_num_batched_tokens, settings.max_model_len),
            kv_cache_bytes=int(GIB * (engine.kv_cache_gib or (0 if is_cuda else CPU_CACHE_GIB))),
            gpu_share=engine.gpu_memory_utilization if is_cuda and engine.kv_cache_gib is None else None,
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
class Plan:
    """The memory plan of a run, with the sizes that it was computed from."""

    recipe: Recipe
    model: ModelShape
    run: RunShape
    memory: MemoryPlan


def plan_run(recipe: Recipe) -> Plan:
    """The memory plan of one process of `apo train`; raises `ConfigError` for sizes or a model that cannot work."""
    if recipe.lora is not None:
        recipe.lora.check(recipe.architecture)
    model, run = shape_of(recipe.architecture, recipe.lora), run_shape(recipe)
    return Plan(recipe=recipe, model=model, run=run, memory=plan_memory(model, run))


def time_of(plan: Plan) -> TimePlan:
    """The time of a step, by phase; raises `ConfigError` if rates cannot be measured or a value is out of range."""
    recipe = plan.recipe
    expected, rates = instantiate(recipe.cfg.expected), instantiate(recipe.cfg.rates)
    if not isinstance(rates, Rates):
        rates = rates(recipe.requested[0], torch.float32 if plan.run.compute_bytes == FLOAT32 else torch.bfloat16)
    return plan_time(plan.model, plan.run, recipe.settings, expected, rates)


def run_shape(recipe: Recipe) -> RunShape:
    """The settings that determine the memory of a run."""
    settings, spec, device, world_size = recipe.settings, recipe.model, recipe.requested[0], recipe.world_size
    is_cuda, has_gpu = device.type == "cuda", torch.cuda.is_available()
    # An absent GPU cannot be asked; all GPUs in question multiply bfloat16.
    is_assumed = is_cuda and not has_gpu and spec.compute_dtype == "auto"
    prompts_per_rank = -(-settings.prompts_per_minibatch // world_size)
    most = prompts_per_rank * (settings.max_prompt_tokens + settings.group_size * settings.max_completion_tokens)
    critic, reference = recipe.options.get("algo.critic"), recipe.reference
    return RunShape(
        world_size=world_size,
        strategy="fsdp" if recipe.is_sharded else "ddp" if world_size > 1 else "single",
        is_cuda=is_cuda,
        compute_bytes=2 if is_assumed or spec.dtype(device) != torch.float32 else FLOAT32,
        has_reference=recipe.needs.reference,
        gradient_checkpointing=spec.gradient_checkpointing,
        compiles_layers=spec.compile_layers,
        changes_reference=reference.rule is not None,
        mixes_reference=reference.mixes,
        averages_base=recipe.options["averaging"].weight > 0,
        # One sequence runs whole, whatever the budget.
        microbatch_tokens=min(max(settings.tokens_per_microbatch, settings.max_model_len), most),
        max_model_len=settings.max_model_len,
        engine=engine_size(recipe.engine, settings, is_cuda=is_cuda),
        gpu_bytes=torch.cuda.get_device_properties(0).total_memory if has_gpu else GPU_BYTES,
        num_trained_models=2 if critic is not None and critic.kind == "separate" else 1,
    )
