"""The printed plan: memory and time by phase, and findings."""

from collections.abc import Sequence

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from apo_lightning.common.formatting import GIB
from apo_plan.findings import Finding
from apo_plan.memory_plan import PHASES
from apo_plan.plan import Plan
from apo_plan.time_plan import TimePlan


def plan_table(plan: Plan) -> RenderableType:
    """The allocations by phase, their sums, and the memory of the GPU if there is one."""
    model, run, memory = plan.model, plan.run, plan.memory
    table = _table(f"memory of {'a GPU' if run.is_cuda else 'a process'} [GiB]", *PHASES)
    for item in memory.allocations:
        table.add_row(Text(item.name), *(_gib(getattr(item, phase)) for phase in PHASES))
    totals = [memory.total(phase) for phase in PHASES]
    cells = (Text(_gib(total), style="bold" if total == memory.peak else "") for total in totals)
    table.add_row(Text("together", style="bold"), *cells)
    if run.is_cuda and torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        table.add_row(Text(name, style="dim"), *(Text(_gib(run.gpu_bytes), style="dim") for _ in totals))
    processes = f"{run.world_size} process{'es' * (run.world_size > 1)} on {plan.recipe.requested[0].type}"
    parameters = f"{model.num_parameters / 1e6:,.1f}M parameters"
    if model.adapters is not None:
        parameters += f" and {model.adapters.num_parameters / 1e6:,.1f}M of adapters"
    dtype = "bfloat16" if run.compute_bytes == 2 else "float32"
    loading = f"{_gib(memory.loading)} GiB a process"
    if memory.loading != memory.loading_others:
        loading = f"{_gib(memory.loading)} GiB the first process, {_gib(memory.loading_others)} GiB each other"
    name = plan.recipe.model.name
    later = f"; from then on {_gib(memory.host)} GiB a process" if memory.host else ""
    return Group(
        Text.assemble((name, "bold"), f", {run.strategy}, {processes}: {parameters}, computing in {dtype}\n"),
        table,
        Text(f"\nin the machine's memory while loading: {loading}{later}\n", style="dim"),
    )


def time_table(time: TimePlan, world_size: int, max_steps: int) -> RenderableType:
    """Seconds of a step by phase, and the hours of a run of `max_steps` rollouts."""
    table = _table("time of a step, estimated [s]", "seconds", "share")
    for phase, seconds in {**time.phases, "a step": time.seconds}.items():
        style = "bold" if phase == "a step" else ""
        table.add_row(*(Text(cell, style) for cell in (phase, f"{seconds:,.2f}", f"{seconds / time.seconds:.0%}")))
    hours, step = time.seconds * max_steps / 3600, time.workload
    together = f"{max_steps:,} steps: " + (f"{hours:,.1f} hours" if hours >= 1 else f"{hours * 60:,.1f} minutes")
    if world_size > 1:
        together += f", {hours * world_size:,.1f} device-hours"
    assumed = (
        f"assumed (expected.…): prompts of {step.prompt_tokens:,.0f} tokens, completions of "
        f"{step.completion_tokens:,.0f}"
    )
    return Group(table, Text("\n" + "\n".join((together, assumed, time.rates.describe())) + "\n", style="dim"))


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
