"""The update of models in the shapes of the paper's: time, share of the peak, memory, dearest kernels."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

from apo_lightning.model.flops import model_size, peak_flops_per_second, training_flops, work_of
from apo_lightning.types import Rollouts
from apo_plan.memory_plan import plan_memory, process_bytes
from apo_plan.shapes import EngineSize, ModelShape, RunShape, shape_of
from benchmarks.gpu.rates import bfloat16_rate
from benchmarks.gpu.rows import Row, attempt, judged, not_run
from benchmarks.performance.update import Shape, build_setup, make_rollouts, only_minibatch, take_gradient
from benchmarks.shared.models import LLAMA3B, QWEN7B, config_of, random_model
from benchmarks.shared.timing import Timing, interleave, waited_for

GIB = 2**30
LEAST_MFU = 0.45
"""In the shape of Llama-3.2-3B with compiled layers, of the peak in the vendor's data sheet: counted 0.49 there, and
0.30 to 0.38 with eager ones on an H100."""
MEMORY_BAND = 0.15
FREE_SHARE = 0.85
"""As much of the GPU's free memory may the plan take: layers beyond it are cut."""
NUM_KERNELS = 5
ROUNDS = 2
MODELS = {"llama3b": LLAMA3B, "qwen7b": QWEN7B}
ON_A_CPU = {"num_hidden_layers": 2, "hidden_size": 168, "head_dim": 8, "intermediate_size": 512, "vocab_size": 2048}
"""Heads and their grouping stay as they are, and little else: the rows say so by their two layers."""
SHAPES = {"cuda": Shape(512, 1024, 1024), "cpu": Shape(16, 8, 24)}
GROUP_SIZE = 8
"""Two prompts, one micro-batch each."""


def run_shape(kind: str, positions: int, longest: int, how: str) -> RunShape:
    """What preflight would read from the configuration of such a run; the engine sleeps during an update."""
    return RunShape(
        world_size=1,
        strategy="single",
        is_cuda=kind == "cuda",
        compute_bytes=2,
        has_reference=False,
        gradient_checkpointing=how == "recomputing",
        compiles_layers=how == "compiled",
        microbatch_tokens=positions,
        max_model_len=longest,
        engine=EngineSize(name="transformers", num_sequences=1, num_forward_tokens=1, kv_cache_bytes=0),
    )


def planned_bytes(model: ModelShape, run: RunShape) -> int:
    """Of tensors in the update; the context lies outside of what torch allocates."""
    return plan_memory(model, run).total("update") - process_bytes(run)


def with_layers(model: ModelShape, num_layers: int) -> ModelShape:
    fewer = model.num_layers - num_layers
    return replace(model, num_layers=num_layers, num_parameters=model.num_parameters - fewer * model.layer_parameters)


def layers_that_fit(model: ModelShape, run: RunShape, free_bytes: float) -> int:
    """The most layers whose plan fits; at least one, which may not."""
    fitting = (n for n in range(model.num_layers, 1, -1) if planned_bytes(with_layers(model, n), run) <= free_bytes)
    return next(fitting, 1)


@dataclass(frozen=True)
class Update:
    """One optimizer step of the module, from given rollouts; called, it is waited for."""

    run: Callable[[], None]
    flops: int
    """By the update's own arithmetic: what is recomputed does not count."""
    positions: int
    """Of the largest micro-batch."""
    tokens: int
    """Through the backbone, of all micro-batches."""


def make_update(
    model: PreTrainedModel, rollouts: Rollouts, device: torch.device, budget: int, *, compiles_layers: bool
) -> Update:
    """As the module's own, without the engine's check: no engine has sampled these rollouts."""
    setup = build_setup(model, rollouts, torch.bfloat16, device=device, tokens_per_microbatch=budget)
    setup.policy.compiles_layers = compiles_layers
    setup.policy.compile_layers()
    plan, minibatch = only_minibatch(setup, rollouts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)

    def step() -> None:
        take_gradient(setup, plan, minibatch)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    microbatches = minibatch.active_microbatches
    work = work_of(microbatches)
    return Update(
        run=waited_for(step, device),
        flops=training_flops(model_size(model), work),
        positions=max(len(microbatch.input_ids) for microbatch in microbatches),
        tokens=work.num_tokens,
    )


def update_rows(name: str, how: str, kind: str) -> Iterator[Row]:
    """One model in one manner, in a process of its own: fragments of another's memory would count as its own."""
    device, shape = torch.device(kind), SHAPES[kind]
    fields = MODELS[name] | (ON_A_CPU if kind == "cpu" else {})
    budget = shape.prompt + GROUP_SIZE * shape.longest
    size = whole = shape_of(config_of(fields))
    run = run_shape(kind, budget, shape.prompt + shape.longest, how)
    if kind == "cuda":
        size = with_layers(whole, layers_that_fit(whole, run, FREE_SHARE * torch.cuda.mem_get_info(device)[0]))
    model = random_model(config_of(fields | {"num_hidden_layers": size.num_layers}), device).train()
    if run.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    rollouts = make_rollouts(shape, size.vocab_size, 2, GROUP_SIZE)
    update = make_update(model, rollouts, device, budget, compiles_layers=how == "compiled")
    title = f"{name}, {size.num_layers} of {MODELS[name]['num_hidden_layers']} layers, {how}"
    timing = interleave({"update": update.run}, ROUNDS)["update"]
    yield from speed_rows(title, update, timing, device, is_goal=(name, how) == ("llama3b", "compiled"))
    run = replace(run, microbatch_tokens=update.positions)
    yield from attempt(f"{title}: memory", memory_row(title, update, size, run))
    yield from attempt(f"{title}: kernels", kernel_rows(title, update, timing, device))


def speed_rows(title: str, update: Update, timing: Timing, device: torch.device, *, is_goal: bool) -> Iterator[Row]:
    """Milliseconds, and the share of the peak and of the products' rate that was measured in the same process."""
    seconds = timing.minimum
    said = f"{1e3 * seconds:,.0f} ms for {update.tokens:,} positions" + ("" if timing.is_steady else " (unsteady)")
    yield Row(check=f"{title}: time", result=said, figures={"seconds": timing.seconds, "positions": update.tokens})
    rate, measured = update.flops / seconds, bfloat16_rate(device)
    peak = peak_flops_per_second(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    share = f"{rate / measured:.1%} of the products' {measured / 1e12:.3g} TFLOP/s"
    figures = {"flops_per_second": rate, "matmul_flops_per_second": measured, "peak_flops_per_second": peak}
    if peak is None:
        yield Row(check=f"{title}: MFU", result=f"no peak known; {share}", figures=figures)
        return
    bar = LEAST_MFU if is_goal else None
    yield judged(f"{title}: MFU", rate / peak, f"{rate / peak:.1%}; {share}", at_least=bar, **figures)


def memory_row(title: str, update: Update, model: ModelShape, run: RunShape) -> Iterator[Row]:
    """The most that torch held during an update, beside the plan of it; the optimizer has its moments."""
    check = f"{title}: peak memory ÷ plan"
    if not run.is_cuda:
        yield not_run(check, "no GPU")
        return
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    update.run()
    peak, plan = torch.cuda.max_memory_allocated(), planned_bytes(model, run)
    said = f"{peak / plan:.2f} ({peak / GIB:.1f} of {plan / GIB:.1f} GiB)"
    reserved = torch.cuda.max_memory_reserved()
    band = {"at_least": 1 - MEMORY_BAND, "at_most": 1 + MEMORY_BAND}
    yield judged(check, peak / plan, said, **band, peak_bytes=peak, planned_bytes=plan, reserved_bytes=reserved)


def kernel_rows(title: str, update: Update, timing: Timing, device: torch.device) -> Iterator[Row]:
    """How much of the update a GPU works, and its dearest kernels, on a CPU operators, with their share of all."""
    is_cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]) as found:
        update.run()
    seconds = kernel_seconds(found.key_averages(), is_cuda=is_cuda)
    total = sum(seconds.values())
    busy = total / timing.minimum
    if is_cuda:  # what is missing to 1, the GPU has waited for the host
        said = f"{busy:.1%}: {1e3 * total:,.0f} ms of kernels"
        yield Row(check=f"{title}: busy share", result=said, figures={"value": busy, "kernel_seconds": total})
    dearest = sorted(seconds.items(), key=lambda item: -item[1])[:NUM_KERNELS]
    for place, (kernel, took) in enumerate(dearest, start=1):
        said = f"{took / total:.1%}, {1e3 * took:.1f} ms: `{kernel[:90]}`"
        yield Row(check=f"{title}: kernel {place}", result=said, figures={"seconds": took, "name": kernel})


def kernel_seconds(events: Sequence[Any], *, is_cuda: bool) -> dict[str, float]:
    """Seconds in each; the ranges that libraries mark on a GPU's time line are none, and would count twice."""
    kind = DeviceType.CUDA if is_cuda else DeviceType.CPU
    seconds: dict[str, float] = {}
    for event in events:
        if event.device_type == kind and not getattr(event, "is_user_annotation", False):
            micros = event.self_device_time_total if is_cuda else event.self_cpu_time_total
            seconds[event.key] = seconds.get(event.key, 0.0) + micros / 1e6
    return seconds


MANNERS = ("recomputing", "keeping all", "compiled")
"""The last keeps all as well."""
SECTIONS = {f"{name}, {how}": functools.partial(update_rows, name, how) for name in MODELS for how in MANNERS}
