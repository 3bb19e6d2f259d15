import pytest
from hydra.utils import instantiate

from apo_lightning.callbacks import (
    CompletionTable,
    DistributionMonitor,
    ExportPolicy,
    ProgressDisplay,
    RolloutWriter,
    RunSummary,
)
from composing import composed, names

QUIET = {
    "rollout_writer": RolloutWriter,
    "completion_table": CompletionTable,
    "export": ExportPolicy,
    "summary": RunSummary,
}


def kinds(*overrides):
    return {name: type(instantiate(node)) for name, node in composed(*overrides).callbacks.items()}


def test_the_sets_of_callbacks():
    default = {"progress": ProgressDisplay, "monitor": DistributionMonitor, **QUIET}
    assert kinds("callbacks=default") == default
    assert kinds("callbacks=quiet") == QUIET
    assert kinds("callbacks=none") == {}
    assert default.items() < kinds("callbacks=diagnostics").items()


SETS = {"default", "quiet", "none", "diagnostics", "lab"}  # the laboratory's needs a puzzle


@pytest.mark.parametrize("option", sorted({*names("callbacks")} - SETS))
def test_every_callback_goes_with_the_default_set(option):
    default = kinds("callbacks=default")
    assert default.items() <= kinds(f"callbacks=[default,{option}]").items()
