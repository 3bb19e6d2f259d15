"""`apo preflight`: the memory and time that a run needs, and everything that is wrong with it, before it starts."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Group, RenderableType

from apo_lightning.common.console import quiet_libraries, say, show
from apo_lightning.data.sources import DatasetSource
from apo_lightning.errors import ConfigError
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.run.devices import check_devices, requested_devices
from apo_lightning.run.launching import own_folder
from apo_lightning.run.preparing import Algorithm, Prepared, prepare, read_data
from apo_lightning.run.settings import (
    ANNOTATIONS,
    check_ranks,
    check_reward,
    check_values,
    schedule_horizon,
    step_settings,
)
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
    findings: list[Finding] = []
    parts: list[RenderableType] = []
    run: Prepared | None = None
    with _errors_to(findings):
        plan = plan_run(cfg)
        parts.append(plan_table(plan))
        findings += _room_findings(cfg, plan, output_dir)
        with _errors_to(findings):
            parts.append(time_table(time_of(cfg, plan), plan.run.world_size, cfg.trainer.max_steps))
    with _errors_to(findings):
        run = prepare(cfg)
        run.reward.close()
        findings += [Finding("warning", notice) for notice in run.notices]
    if run is None:
        findings += _other_errors(cfg)
    show(Group(*parts))
    for line in () if run is None else run.described:
        say(line)
    show(findings_text(findings), soft_wrap=True)
    return int(any(finding.level == "error" for finding in findings))


@contextlib.contextmanager
def _errors_to(findings: list[Finding]) -> Iterator[None]:
    """Turn a `ConfigError` of the block into a finding; the rest of the block is skipped."""
    try:
        yield
    except ConfigError as error:
        findings.append(Finding("error", str(error)))


def _room_findings(cfg: DictConfig, plan: Plan, output_dir: Path) -> list[Finding]:
    """Findings on memory, cores and disk that are too small for the plan."""
    memory, num_local = plan.memory, plan.num_local
    loading = memory.loading + (num_local - 1) * memory.loading_others
    running = num_local * (memory.host if plan.run.is_cuda else memory.peak)
    findings = [*machine.memory_findings(this_machine(), max(loading, running), num_local)]
    findings += machine.thread_findings(this_machine(), torch.get_num_threads(), num_local)
    if plan.run.is_cuda and torch.cuda.is_available():
        findings += machine.device_findings(plan.run.gpu_bytes, memory.peak)
    # A checkpoint holds the trained weights, their two moments and a reference that changes; a new one is written
    # before an old one is removed, and the best one is kept apart. Snapshots hold trained weights, the export all.
    model, run, kept = plan.model, plan.run, cfg.checkpoint
    checkpoint = FLOAT32 * 3 * run.num_trained_models * model.trained_parameters
    if run.changes_reference:
        checkpoint += run.num_shards * reference_bytes(model, run)
    snapshots = cfg.trainer.max_steps // kept.snapshot_every if kept.snapshot_every else 0
    weights = FLOAT32 * (snapshots * model.trained_parameters + model.num_parameters)
    needed = (kept.keep + 1 + (kept.best is not None)) * checkpoint + weights
    return [*findings, *machine.disk_findings(output_dir, needed)]


def _other_errors(cfg: DictConfig) -> list[Finding]:
    """What is wrong with a run besides the first error, at which `prepare` has stopped.

    Without the model's tokenizer the problems are read in characters, and no length is compared with a limit.
    """
    findings: list[Finding] = []
    attempt = partial(_errors_to, findings)
    with attempt():
        check_devices(cfg.trainer.accelerator, cfg.trainer.devices, cfg.trainer.num_nodes)
    with attempt():
        device, num_local = requested_devices(cfg.trainer.accelerator, cfg.trainer.devices)
        with attempt():
            settings = step_settings(cfg, instantiate(cfg.data))
            with attempt():
                check_ranks(cfg.trainer.strategy, settings, num_local * cfg.trainer.num_nodes)
            schedule_horizon(cfg.trainer, settings)
        engine = instantiate(cfg.engine)
        engine.check(device)
        engine.check_model(instantiate(cfg.model, _convert_="all").load_config(), device)
    with attempt():
        algorithm, model = Algorithm(cfg), instantiate(cfg.model, _convert_="all")
        tokenizer, template = character_tokenizer(), "{problem}"
        with attempt():
            tokenizer, template = model.load_tokenizer(), model.prompt_template
        if template == "{problem}" and isinstance(algorithm.source, DatasetSource):
            algorithm.source = replace(algorithm.source, max_prompt_tokens=sys.maxsize)
        with contextlib.closing(algorithm.reward):
            prompts = read_data(algorithm, tokenizer, template, cfg.seed).prompts
            check_reward(algorithm.reward, prompts, tokenizer, algorithm.num_optimizer_steps)
    return findings
