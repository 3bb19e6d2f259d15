"""docs/metrics.md lists exactly the metrics that runs log."""

import re
from pathlib import Path

import pytest

from apo_lightning.model.flops import ModelSize, Work
from apo_lightning.module import PHASES
from apo_lightning.step.step_metrics import StepWork, speed_metrics
from composing import ROOT
from running import SIGNAL, read_metrics, train_tiny

DIAGNOSTICS = (
    "callbacks=diagnostics",
    "~callbacks.progress",
    "~callbacks.export",
    *(f"callbacks.{name}.every_n_steps=1" for name in ("monitor", "squeezing_monitor", "reachability")),
)
WEIGHTED = {"target": "rewarding.logged_even_start", "partial": "true"}
RUNS = {
    "apo": ("algo=apo", *DIAGNOSTICS, "validation_samples=2"),
    "grpo": ("algo=grpo", "importance=sequence_mask"),
    "grpo_kl": ("algo=grpo_kl", "policy=lora"),
    "weighted": (
        "algo=grpo",
        "reward=weighted",
        *(f"+reward.functions.start._{key}_={value}" for key, value in WEIGHTED.items()),
    ),
    "ppo": ("algo=ppo",),
    "dapo": ("algo=dapo",),
    "reset": ("algo=grpo_kl", "reference.reset_every=1"),
    "nsr": ("algo=nsr", "prompts_per_minibatch=4"),
}
ROW = re.compile(r"^\| `([^`]+)` \|(.*)\|$", re.MULTILINE)


def rows_of_page() -> dict[str, list[str]]:
    found = ROW.findall((ROOT / "docs/metrics.md").read_text())
    assert len({key for key, _ in found}) == len(found), "a key is on the page twice"
    return {key: [cell.strip() for cell in re.split(r"(?<!\\)\|", cells)] for key, cells in found}


def key_on_page(column: str) -> str:
    """A column of metrics.csv with placeholders for the set, k, percentile and bucket."""
    column = re.sub(r"^(val|alarm)/[^/]+/", r"\1/NAME/", column)
    column = re.sub(r"^reward/metric/.+", "reward/metric/NAME", column)
    column = re.sub(r"^reward/(?!metric/)[^/]+/", "reward/NAME/", column)
    column = re.sub(r"@\d+$", "@K", column)
    if column.startswith("time/") and column[5:] not in (*PHASES, "step", "between_steps"):
        return "time/PART"
    column = re.sub(r"_p\d+$", "_pQ", re.sub(r"_q[1-4]$", "_qN", column))
    return re.sub(r"_[\d.]+_to_[\d.]+$", "_A_to_B", column)


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> set[str]:
    # The peak of a CPU is unknown, so runs here do not log perf/mfu.
    size = ModelSize(layer_weights=1, head_weights=1, attention_width=1)
    work = StepWork(num_sampled=1, update=Work(), max_rank_tokens=0, num_ranks=1)
    gpu = speed_metrics(work, size, 1.0, {"update": 1.0, "step": 1.0})
    columns = set(gpu)
    for name, overrides in RUNS.items():
        folder: Path = tmp_path_factory.mktemp(name)
        signal = () if name == "weighted" else SIGNAL
        train_tiny(folder, *signal, "group_size=2", "trainer.max_steps=1", *overrides)
        columns |= read_metrics(folder)[0].keys()
    return {key_on_page(column) for column in columns}


def test_every_logged_metric_is_on_the_page(logged):
    assert logged - rows_of_page().keys() == set()


def test_every_metric_of_the_page_is_logged(logged):
    assert rows_of_page().keys() - logged == set()


def test_every_key_has_a_unit_a_range_a_population_and_a_meaning():
    for key, cells in rows_of_page().items():
        assert len(cells) == 4, key
        assert all(cells), key
