"""What other settings of the same run would cost: seconds of a step and memory, each alone and all together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from apo_lightning.preflight.cost_plan import CostPlan, plan_cost
from apo_lightning.preflight.memory_plan import MemoryPlan, plan_memory
from apo_lightning.preflight.memory_shapes import ModelShape, RunShape
from apo_lightning.preflight.rates import Rates
from apo_lightning.preflight.workload import Workload

Change = Callable[[RunShape, Workload], tuple[RunShape, Workload]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The plans of a run that learns the same with another setting, but for rounding."""

    override: str
    """What to type; "all of these" for the last of several."""
    cost: CostPlan
    memory: MemoryPlan


def alternatives(
    model: ModelShape, run: RunShape, work: Workload, rates: Rates, *, engine_key: str
) -> list[Alternative]:
    """Each setting that could be otherwise and trade memory for time, and all of them at once where there are several.

    Args:
        model: sizes of the model.
        run: as it is set.
        work: of one rank in one step.
        rates: of its device.
        engine_key: where vLLM's settings lie in the configuration, `engine` or `engine.vllm`.
    """

    def alternative(override: str, run: RunShape, work: Workload) -> Alternative:
        return Alternative(override=override, cost=plan_cost(model, run, work, rates), memory=plan_memory(model, run))

    found, together = [], (run, work)
    for override, change in _changes(run, work, engine_key):
        found.append(alternative(override, *change(run, work)))
        together = change(*together)
    return [*found, alternative("all of these", *together)] if len(found) > 1 else found


def _changes(run: RunShape, work: Workload, engine_key: str) -> Iterator[tuple[str, Change]]:
    engine = run.engine
    if run.gradient_checkpointing:
        yield "model.gradient_checkpointing=false", _with_run(gradient_checkpointing=False)
    if engine.name == "vllm" and run.is_cuda and not engine.has_graphs:
        yield f"{engine_key}.enforce_eager=false", _with_engine(has_graphs=True)
    if engine.name == "vllm" and engine.num_sequences < work.num_completions:
        more = min(2 * engine.num_sequences, round(work.num_completions))
        yield f"{engine_key}.max_num_seqs={more}", _with_engine(num_sequences=more)
    if work.later_share > 0:
        scored = work.scored_share - work.later_share
        yield "old_logprobs=rollout", lambda run, work: (run, replace(work, scored_share=scored, later_share=0.0))
    if run.strategy == "fsdp" and run.world_size > 1 and not run.keeps_layers_gathered:
        yield "trainer.strategy.reshard_after_forward=false", _with_run(keeps_layers_gathered=True)


def _with_run(**changes: object) -> Change:
    return lambda run, work: (replace(run, **changes), work)


def _with_engine(**changes: object) -> Change:
    return lambda run, work: (replace(run, engine=replace(run.engine, **changes)), work)
