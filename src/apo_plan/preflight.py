"""`apo preflight`: the memory and time that a run needs, and everything that is wrong with it, before it starts."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Group, RenderableType

from apo_lightning.common.console import quiet_libraries, say, show
from apo_lightning.run.checks import CHECKS, check_data
from apo_lightning.run.choices import composed
from apo_lightning.run.launching import own_folder
from apo_lightning.run.recipe import Recipe
from apo_lightning.run.settings import ANNOTATIONS, check_values
from apo_lightning.run.user_message import user_message
from apo_plan import findings as machine
from apo_plan.findings import Finding, this_machine
from apo_plan.memory_plan import reference_bytes
from apo_plan.plan import Plan, plan_run, time_of
from apo_plan.shapes import FLOAT32
from apo_plan.tables import findings_text, plan_table, time_table


def preflight_command(cfg: DictConfig) -> None:
    """`apo preflight`: print the plan, and exit with status 1 if the run cannot work."""
    check_values(cfg, ANNOTATIONS)
    folder = Path(HydraConfig.get().runtime.output_dir)
    with own_folder(folder):
        if status := preflight(cfg, folder):
            sys.exit(status)


def preflight(cfg: DictConfig, output_dir: Path) -> int:
    """Print the plan of a run and what is wrong with it; load no weights.

    A run stops at its first error; here all are listed, and the plan is made in spite of them.

    Returns:
        The exit status: 1 if there is an error, else 0.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    quiet_libraries(output_dir / "run.log")
    recipe, findings, parts = Recipe(cfg), list[Finding](), list[RenderableType]()
    with _errors_to(findings):
        plan = plan_run(recipe)
        parts.append(plan_table(plan))
        findings += _room_findings(plan, output_dir)
        with _errors_to(findings):
            parts.append(time_table(time_of(plan), plan.run.world_size, recipe.max_steps))
    wrong: list[Finding] = []
    with contextlib.closing(recipe):
        for check in CHECKS:
            with _errors_to(wrong):
                check(recipe)
        if not wrong:
            findings += [Finding("warning", notice) for notice in recipe.notices]
    if "tokenizer" not in vars(recipe):
        with _errors_to(wrong), contextlib.closing(_in_characters(cfg)) as other:
            check_data(other)
    show(Group(*parts))
    for line in () if wrong else recipe.described:
        say(line)
    findings += wrong
    show(findings_text(findings), soft_wrap=True)
    return int(any(finding.level == "error" for finding in findings))


@contextlib.contextmanager
def _errors_to(findings: list[Finding]) -> Iterator[None]:
    """Turn an error of the block that the user can mend into a finding; the rest of the block is skipped.

    An error without a line for the user is raised, unless one is named already: it may follow from that.
    """
    try:
        yield
    except Exception as error:
        if (line := user_message(error)) is not None:
            findings.append(Finding("error", line))
        elif not findings:
            raise


def _room_findings(plan: Plan, output_dir: Path) -> list[Finding]:
    """Findings on memory, cores and disk that are too small for the plan."""
    recipe, memory, num_local = plan.recipe, plan.memory, plan.recipe.requested[1]
    loading = memory.loading + (num_local - 1) * memory.loading_others
    running = num_local * (memory.host if plan.run.is_cuda else memory.peak)
    findings = [*machine.memory_findings(this_machine(), max(loading, running), num_local)]
    findings += machine.thread_findings(this_machine(), torch.get_num_threads(), num_local)
    if plan.run.is_cuda and torch.cuda.is_available():
        findings += machine.device_findings(plan.run.gpu_bytes, memory.peak)
    # A checkpoint holds the trained weights, their two moments and a reference that changes; a new one is written
    # before an old one is removed, and the best one is kept apart. Snapshots hold trained weights, the export all.
    model, run, kept = plan.model, plan.run, recipe.checkpoint
    checkpoint = FLOAT32 * 3 * run.num_trained_models * model.trained_parameters
    if run.changes_reference:
        checkpoint += run.num_shards * reference_bytes(model, run)
    snapshots = recipe.max_steps // kept.snapshot_every if kept.snapshot_every else 0
    weights = FLOAT32 * (snapshots * model.trained_parameters + model.num_parameters)
    needed = (kept.keep + 1 + (kept.best is not None)) * checkpoint + weights
    return [*findings, *machine.disk_findings(output_dir, needed)]


def _in_characters(cfg: DictConfig) -> Recipe:
    """The run on a model that reads characters, for one whose tokenizer is not here; no prompt is too long."""
    other = cfg.copy()
    OmegaConf.set_struct(other, False)
    other.model = composed("train", ["model=tiny", "model.prompt_template='{problem}'"]).model
    if "max_prompt_tokens" in other.data:
        other.data.max_prompt_tokens = sys.maxsize
    return Recipe(other)
