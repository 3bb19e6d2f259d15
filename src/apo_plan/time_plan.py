"""How long a step takes on one rank: FLOPs and bytes, counted from sizes, divided by the rates of a device.

`benchmarks/RESULTS.md` has what was measured. Not counted: what the ranks wait for each other and for collectives that
no product hides, verification, which overlaps the sampling, diagnostics, validation, checkpoints and start-up.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from apo_lightning.common.ranges import Checked, Within
from apo_lightning.model.flops import ModelSize, Work, training_flops
from apo_lightning.step.settings import StepSettings
from apo_plan.memory_plan import engine_weight_bytes, kv_token_bytes
from apo_plan.rates import Rates
from apo_plan.shapes import FLOAT32, ModelShape, RunShape

ADAM_BYTES = 40
"""Traffic of one optimizer step per trained parameter: weight, gradient and two moments are read, all but the gradient
written (28); the gradient is read for its norm and scaled (12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected(Checked):
    """Assumptions about a step that its time depends on.

    Attributes:
        prompt_tokens: mean length of a prompt; None: the longest allowed.
        completion_tokens: mean length of a completion; None: the longest allowed.
        updated_share: share of the completions that the update runs; those without a gradient are skipped.
        reference_share: share of the completions that the reference runs, where there is one.
        kept_share: with dynamic sampling, groups kept ÷ groups sampled, in (0, 1].
    """

    prompt_tokens: Annotated[float | int | None, Within("(0, inf]", "or null for the longest")] = None
    completion_tokens: Annotated[float | int | None, Within("(0, inf]", "or null for the longest")] = None
    updated_share: Annotated[float | int, Within("[0, 1]")] = 1.0
    reference_share: Annotated[float | int, Within("[0, 1]")] = 1.0
    kept_share: Annotated[float | int, Within("(0, 1]")] = 1.0

    section: ClassVar[str] = "expected."


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One rank's share of a step; lengths are means."""

    num_prompts: float | int
    """An even share of the step's prompts."""
    group_size: int
    prompt_tokens: float | int
    completion_tokens: float | int
    longest_completion: int
    num_sampled: float | int
    """Completions that the engine samples: with dynamic sampling more than the step trains on."""

    def work(self, share: float | int = 1.0) -> Work:
        """A forward over a share of the completions; each prompt runs once for its group, unless none of it is left.

        The last token of a completion is predicted, not run.

        Departure: all lengths are taken as equal, which undercounts the pairs of long completions.

        Example:
            Two groups of 4, of which half the completions: 2·3 + 4·(5 − 1) tokens, 2·6 + 4·(3·4 + 10) pairs, 4·5 rows.

            >>> step = Workload(
            ...     num_prompts=2,
            ...     group_size=4,
            ...     prompt_tokens=3,
            ...     completion_tokens=5,
            ...     longest_completion=9,
            ...     num_sampled=8,
            ... )
            >>> step.work(0.5)
            Work(num_tokens=22, num_pairs=100, num_rows=20)
        """
        groups, completions = self.num_prompts * min(1, share * self.group_size), self.num_prompts * self.group_size
        completions *= share
        prompt, run = self.prompt_tokens, max(0, self.completion_tokens - 1)
        pairs = groups * prompt * (prompt + 1) / 2 + completions * (prompt * run + run * (run + 1) / 2)
        return Work(
            num_tokens=round(groups * prompt + completions * run),
            num_pairs=round(pairs),
            num_rows=round(completions * self.completion_tokens),
        )


def workload_of(settings: StepSettings, expected: Expected, world_size: int) -> Workload:
    """The workload of one of the ranks."""
    num_prompts = settings.prompts_per_step / world_size
    return Workload(
        num_prompts=num_prompts,
        group_size=settings.group_size,
        prompt_tokens=min(expected.prompt_tokens or math.inf, settings.max_prompt_tokens),
        completion_tokens=min(expected.completion_tokens or math.inf, settings.max_completion_tokens),
        longest_completion=settings.max_completion_tokens,
        num_sampled=num_prompts * settings.group_size / expected.kept_share,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePlan:
    """Seconds of one step of a rank."""

    phases: dict[str, float]
    """Seconds by phase, as in `time/…` of metrics.csv; phases that do not run are left out."""
    workload: Workload
    rates: Rates

    @property
    def seconds(self) -> float:
        """Time of one step [s]."""
        return sum(self.phases.values())


def plan_time(model: ModelShape, run: RunShape, settings: StepSettings, expected: Expected, rates: Rates) -> TimePlan:
    """The plan of one rank."""
    step, size = workload_of(settings, expected, run.world_size), model_size_of(model)
    critics = run.num_trained_models - 1
    updated = step.work(expected.updated_share)
    values = replace(updated, num_rows=0)  # a critic has no head over the vocabulary
    recomputed = forward_flops(size, values) * run.gradient_checkpointing
    update = (
        training_flops(size, updated) + critics * training_flops(size, values) + run.num_trained_models * recomputed
    )
    # The first mini-batch is updated by the policy that sampled it.
    rescored = (1 - 1 / settings.minibatches_per_step) * (settings.old_logprobs == "trainer")
    optimizer = ADAM_BYTES * run.num_trained_models * -(-model.trained_parameters // run.num_shards)
    # Weights are read in float32, cast, and copied by the engine.
    synced = (FLOAT32 + 3 * run.compute_bytes) * model.num_parameters
    flops, memory = rates.model_flops_per_second, rates.memory_bytes_per_second
    phases = {
        "generate": generation_seconds(model, run, step, rates),
        "values": critics * forward_flops(size, values) / flops,
        "reference": run.has_reference * forward_flops(size, step.work(expected.reference_share)) / flops,
        "old_logprobs": rescored * forward_flops(size, updated) / flops,
        "update": update / flops + settings.minibatches_per_step * optimizer / memory,
        "sync": synced / memory,
    }
    phases = {name: seconds for name, seconds in phases.items() if seconds > 0}
    return TimePlan(phases=phases, workload=step, rates=rates)


def model_size_of(model: ModelShape) -> ModelSize:
    """The sizes that `training_flops` reads. Norms count as matrices; they are a ten-thousandth of a layer."""
    layers, is_adapted = model.num_layers * model.layer_parameters, model.adapters is not None
    return ModelSize(
        layer_weights=layers + model.adapter_parameters,
        head_weights=model.head_parameters,
        attention_width=model.num_layers * model.query_width,
        frozen_layer_weights=layers * is_adapted,
        head_is_frozen=is_adapted,
    )


def forward_flops(size: ModelSize, work: Work) -> int:
    """2·N·tokens + 4·width·pairs + 2·V·D·rows: a third of forward and backward together."""
    return training_flops(replace(size, frozen_layer_weights=0, head_is_frozen=False), work) // 3


def decoding_steps(run: RunShape, step: Workload) -> float:
    """Forwards of the engine for n completions of mean length R, at most L, on s slots.

    vLLM refills a free slot at once: n·R/s forwards, and a tail of L − R in which the longest end. transformers starts
    the next batch when the current one has ended: L forwards a batch.
    """
    slots = min(run.engine.num_sequences, step.num_sampled)
    if run.engine.name != "vllm":
        return -(-step.num_sampled // slots) * step.longest_completion
    return step.num_sampled * step.completion_tokens / slots + step.longest_completion - step.completion_tokens


def generation_seconds(model: ModelShape, run: RunShape, step: Workload, rates: Rates) -> float:
    """Prompts, once a group, then one token a forward for every unfinished completion.

    A decoding forward multiplies each token with all weights while it reads them: the slower of the two counts. Then it
    reads keys and values.
    """
    size, num_steps = model_size_of(model), decoding_steps(run, step)
    sampled = step.num_sampled * step.completion_tokens
    prefill = Work(num_tokens=round(step.num_sampled / step.group_size * step.prompt_tokens))
    decoded = Work(num_tokens=round(sampled), num_rows=round(sampled))
    weights = num_steps * engine_weight_bytes(model, run) / rates.memory_bytes_per_second
    context = step.prompt_tokens + step.completion_tokens / 2
    read = sampled * context * kv_token_bytes(model, run)
    return (
        forward_flops(size, prefill) / rates.model_flops_per_second
        + max(forward_flops(size, decoded) / rates.model_flops_per_second, weights)
        + read / rates.memory_bytes_per_second
        + num_steps * rates.engine_step_seconds
    )
