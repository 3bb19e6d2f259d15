import pytest
from hydra.utils import instantiate

from apo_lightning.callbacks import DistributionMonitor, ExportPolicy, ProgressDisplay, RolloutWriter, RunSummary
from composing import composed


def test_the_default_callbacks_are_these_and_the_progress_display_comes_first():
    """First, because it has to leave the terminal before the closing table is printed."""
    nodes = composed("callbacks=default").callbacks
    assert [type(instantiate(node)) for node in nodes.values()] == [
        *(ProgressDisplay, RolloutWriter, DistributionMonitor, ExportPolicy, RunSummary),
    ]


def test_one_callback_can_be_left_out_and_another_set():
    nodes = composed("~callbacks.monitor", "callbacks.rollout_writer.every_n_steps=10").callbacks
    assert "monitor" not in nodes
    assert instantiate(nodes.rollout_writer).every_n_steps == 10


@pytest.mark.parametrize(("option", "names"), [("none", []), ("quiet", ["rollout_writer", "export", "summary"])])
def test_smaller_sets(option, names):
    assert list(composed(f"callbacks={option}").callbacks) == names
