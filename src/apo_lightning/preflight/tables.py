"""The printed plan: memory and time by phase, the sizes of the run, and findings."""

from collections.abc import Sequence

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from apo_lightning.common.formatting import GIB
from apo_lightning.preflight.cost_plan import CostPlan
from apo_lightning.preflight.environment import Finding
from apo_lightning.preflight.memory_plan import PHASES, MemoryPlan
from apo_lightning.preflight.memory_shapes import ModelShape, RunShape
from apo_lightning.update.settings import StepSettings

LARGEST_ITEMS = 10
"""Items of the cost plan that are listed under their phases."""


def plan_table(name: str, ranks: str, model: ModelShape, run: RunShape, plan: MemoryPlan) -> RenderableType:
    """The allocations by phase, their sums, and the memory of the GPU if there is one."""
    table = _table(f"memory of {'a GPU' if run.is_cuda else 'a process'} [GiB]", *PHASES)
    for item in plan.allocations:
        table.add_row(Text(item.name), *(_gib(getattr(item, phase)) for phase in PHASES))
    table.add_section()
    totals = [plan.total(phase) for phase in PHASES]
    table.add_row(
        Text("together", style="bold"), *(Text(_gib(t), style="bold" if t == plan.peak else "") for t in totals)
    )
    if run.is_cuda and torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(0)
        table.add_row(Text(gpu.name, style="dim"), *(Text(_gib(gpu.total_memory), style="dim") for _ in totals))
    dtype = "bfloat16" if run.compute_bytes == 2 else "float32"
    parameters = f"{model.num_parameters / 1e6:,.1f}M parameters"
    if model.adapters is not None:
        parameters += f" and {model.adapters.num_parameters / 1e6:,.1f}M of adapters"
    loading = f"{_gib(plan.loading)} GiB a process"
    if plan.loading != plan.loading_others:
        loading = f"{_gib(plan.loading)} GiB the first process, {_gib(plan.loading_others)} GiB each other"
    later = f"; from then on {_gib(plan.host)} GiB a process" if plan.host else ""
    return Group(
        Text.assemble((name, "bold"), f", {ranks}: {parameters}, computing in {dtype}\n"),
        table,
        Text(f"\nin the machine's memory while loading: {loading}{later}\n", style="dim"),
    )


def run_table(
    settings: StepSettings, world_size: int, *, max_steps: int, val_check_interval: int | None, has_held_out: bool
) -> RenderableType:
    """The numbers of rollouts, optimizer steps, completions and tokens of the run.

    Args:
        settings: sizes of a step.
        world_size: ranks of the run.
        max_steps: rollouts of the run.
        val_check_interval: rollouts between two validation passes; None: only before and after training.
        has_held_out: whether there are held-out problems.
    """
    steps, every = max_steps, val_check_interval
    samples = steps * settings.prompts_per_step * settings.group_size
    # Before the first rollout, at every interval, and after the last rollout unless an interval has just ended.
    passes = (1 + (steps // every if every else 0) + (not every or steps % every > 0)) * has_held_out
    rows = {
        "rollouts": f"{steps:,}",
        "optimizer steps": f"{steps * settings.minibatches_per_step:,}",
        "prompts a rollout and rank": f"{settings.prompts_per_step / world_size:g}",
        "completions sampled": f"{samples:,}",
        "tokens sampled, at most": f"{samples * settings.max_completion_tokens:,}",
        "validation passes": f"{passes:,}",
    }
    table = _table("the run", "")
    for name, value in rows.items():
        table.add_row(name, value)
    return Group(table, Text())


def cost_table(cost: CostPlan, settings: StepSettings, world_size: int, max_steps: int) -> RenderableType:
    """Seconds of a step by phase, the items that take longest, and the hours of the run.

    Args:
        cost: of a step, on each rank.
        settings: sizes of a step.
        world_size: ranks of the run.
        max_steps: rollouts of the run.
    """
    table = _table("time of a step, counted [s]", "seconds", "share", "bound by")
    for phase, seconds in cost.phases().items():
        table.add_row(Text(phase, style="bold"), *(Text(cell, style="bold") for cell in _share(seconds, cost)), "")
        for item in cost.largest(LARGEST_ITEMS):
            if item.phase == phase:
                table.add_row(Text(f"  {item.name}", style="dim"), *_share(item.seconds, cost), item.bound)
    table.add_section()
    table.add_row(Text("a step", style="bold"), *_share(cost.seconds, cost), "")
    hours = cost.seconds * max_steps / 3600
    together = f"{max_steps:,} steps: {hours:,.1f} hours"
    if world_size > 1:
        together += f", {hours * world_size:,.0f} of one device"
    sampled = settings.prompts_per_step * settings.group_size * cost.work.completion_tokens
    speed = f"{sampled / cost.seconds:,.0f} sampled tokens/s"
    lines = (f"{together}; {speed}", cost.work.describe(), cost.rates.describe())
    return Group(table, Text("\n" + "\n".join(lines) + "\n", style="dim"))


def _share(seconds: float, cost: CostPlan) -> tuple[str, str]:
    return f"{seconds:,.2f}", f"{seconds / cost.seconds:.0%}"


def findings_text(findings: Sequence[Finding]) -> Text:
    """Each finding on a line, errors first."""
    if not findings:
        return Text("no problems found", style="green")
    text = Text()
    for finding in sorted(dict.fromkeys(findings), key=lambda finding: finding.level):
        text.append(f"{finding.level}: ", style="red" if finding.level == "error" else "yellow")
        text.append(f"{finding.text}\n")
    text.rstrip()
    return text


def _table(title: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True, min_width=38)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _gib(size: int) -> str:
    """A size in GiB with two decimals; a dot for 0."""
    return f"{size / GIB:,.2f}" if size else "·"
