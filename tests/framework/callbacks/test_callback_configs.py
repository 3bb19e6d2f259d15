import pytest
from hydra.utils import instantiate

from apo_lab.diagnostics import CollapseAlarm, Reachability, SqueezingMonitor
from apo_lightning.callbacks import (
    CompletionTable,
    DistributionMonitor,
    ExportPolicy,
    ProgressDisplay,
    RolloutWriter,
    RunSummary,
)
from composing import composed


def test_the_default_callbacks_are_these_and_the_progress_display_comes_first():
    """First, because it has to leave the terminal before the closing table is printed."""
    nodes = composed("callbacks=default").callbacks
    assert [type(instantiate(node)) for node in nodes.values()] == [
        *(ProgressDisplay, RolloutWriter, CompletionTable, DistributionMonitor, ExportPolicy, RunSummary),
    ]


def test_one_callback_can_be_left_out_and_another_set():
    nodes = composed("~callbacks.monitor", "callbacks.rollout_writer.every_n_steps=10").callbacks
    assert "monitor" not in nodes
    assert instantiate(nodes.rollout_writer).every_n_steps == 10


def test_every_diagnostic_goes_with_the_default_set_or_alone():
    names = ["squeezing_monitor", "collapse_alarm", "reachability"]
    classes = [SqueezingMonitor, CollapseAlarm, Reachability]
    everything = composed("callbacks=diagnostics").callbacks
    assert list(everything) == [*composed("callbacks=default").callbacks, *names]
    for name, kind in zip(names, classes, strict=True):
        assert type(instantiate(everything[name])) is kind
        assert list(composed(f"callbacks={name}").callbacks) == [name]


@pytest.mark.parametrize(
    ("option", "names"), [("none", []), ("quiet", ["rollout_writer", "completion_table", "export", "summary"])]
)
def test_smaller_sets(option, names):
    assert list(composed(f"callbacks={option}").callbacks) == names
