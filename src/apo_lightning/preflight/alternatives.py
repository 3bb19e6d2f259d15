"""What other settings of the same run would cost: seconds of a step and memory, each alone and all together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from apo_lightning.preflight.cost_plan import CostPlan, plan_cost
from apo_lightning.preflight.memory_plan import MemoryPlan, plan_memory
from apo_lightning.preflight.memory_shapes import ModelShape, RunShape
from apo_lightning.preflight.rates import Rates
from apo_lightning.preflight.workload import NOTHING, Workload
from apo_lightning.rollout.kv_cache import FILLED

TOGETHER = "together, those with room"
OLD_LOGPROBS = "old_logprobs=rollout"
MICROBATCH_STEP = 1024
"""Positions by which a micro-batch is made smaller. Where all are whole, fewer of them gather embedding and head less
often."""

Change = Callable[[RunShape, Workload], tuple[RunShape, Workload]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The plans of a run that learns the same with another setting, but for rounding."""

    override: str
    """What to type, or `TOGETHER`."""
    cost: CostPlan
    memory: MemoryPlan


def alternatives(
    model: ModelShape, run: RunShape, work: Workload, rates: Rates, *, engine_key: str
) -> list[Alternative]:
    """Each setting that could be otherwise and trade memory for time, and together those that a GPU has room for.

    Args:
        model: sizes of the model.
        run: as it is set.
        work: of one rank in one step.
        rates: of its device.
        engine_key: where vLLM's settings lie in the configuration, `engine` or `engine.vllm`.
    """

    def alternative(override: str, run: RunShape, work: Workload) -> Alternative:
        return Alternative(override=override, cost=plan_cost(model, run, work, rates), memory=plan_memory(model, run))

    found, together, num_together = [], (run, work), 0
    for override, change in _changes(model, run, work, engine_key):
        found.append(alternative(override, *change(run, work)))
        changed = change(*together)
        if _has_room(model, changed[0]):
            together, num_together = changed, num_together + 1
    if num_together > 1:
        found.append(alternative(TOGETHER, *together))
    return found


def _changes(model: ModelShape, run: RunShape, work: Workload, engine_key: str) -> Iterator[tuple[str, Change]]:
    engine = run.engine
    if engine.name == "vllm" and run.is_cuda and not engine.has_graphs:
        yield f"{engine_key}.enforce_eager=false", _with_engine(has_graphs=True)
    if engine.name == "vllm" and engine.num_sequences < work.num_completions:
        more = min(2 * engine.num_sequences, round(work.num_completions))
        yield f"{engine_key}.max_num_seqs={more}", _with_engine(num_sequences=more)
    if work.later != NOTHING:
        yield OLD_LOGPROBS, lambda run, work: (run, replace(work, later=NOTHING))
    if run.is_cuda and not run.compiles_layers:
        yield "model.compile_layers=true", _with_run(compiles_layers=True)
    if run.gradient_checkpointing:
        yield _without_recomputation(model, run)
    if run.strategy == "fsdp" and run.world_size > 1 and not run.keeps_layers_gathered:
        yield "trainer.strategy.reshard_after_forward=false", _with_run(keeps_layers_gathered=True)


def _without_recomputation(model: ModelShape, run: RunShape) -> tuple[str, Change]:
    """All activations are kept, of the largest micro-batch that there is room for, or of one completion."""
    tokens = run.microbatch_tokens

    def kept(tokens: int) -> RunShape:
        return replace(run, gradient_checkpointing=False, microbatch_tokens=tokens)

    while not _has_room(model, kept(tokens)) and tokens - MICROBATCH_STEP >= run.max_model_len:
        tokens -= MICROBATCH_STEP
    override = "model.gradient_checkpointing=false"
    if tokens < run.microbatch_tokens:
        override += f" tokens_per_microbatch={tokens}"
    return override, _with_run(gradient_checkpointing=False, microbatch_tokens=tokens)


def _has_room(model: ModelShape, run: RunShape) -> bool:
    return not run.is_cuda or plan_memory(model, run).peak <= FILLED * run.gpu_bytes


def _with_run(**changes: object) -> Change:
    return lambda run, work: (replace(run, **changes), work)


def _with_engine(**changes: object) -> Change:
    return lambda run, work: (replace(run, engine=replace(run.engine, **changes)), work)
