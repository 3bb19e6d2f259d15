import pytest

from apo_lightning.callbacks import DistributionMonitor, RolloutWriter, StepCallback
from apo_lightning.errors import ConfigError
from running import read_metrics


class Noting(StepCallback):
    def __init__(self, every_n_steps=1):
        self.every_n_steps = every_n_steps
        self.steps = []
        self.validated = []

    def on_step(self, step):
        self.steps.append(step.step)
        return {"mine/step": float(step.step)}

    def on_validated(self, output):
        self.validated.append(output.step)


def test_a_callback_sees_the_steps_that_are_due_and_its_numbers_are_logged(scripted_run):
    every, third = Noting(), Noting(every_n_steps=3)
    run = scripted_run(callbacks=[every, third], max_steps=7)
    assert every.steps == [1, 2, 3, 4, 5, 6, 7]
    assert third.steps == [3, 6]
    logged = [row["mine/step"] for row in read_metrics(run.folder) if row["mine/step"]]
    assert [float(value) for value in logged] == [1, 2, 3, 4, 5, 6, 7]


def test_validation_is_seen_when_its_results_are_there_and_not_one_pass_late(scripted_run):
    noting = Noting()
    scripted_run(callbacks=[noting], max_steps=5, val_check_interval=2)
    assert noting.validated == [0, 2, 4, 5]


@pytest.mark.parametrize("callback", [RolloutWriter, DistributionMonitor])
def test_a_callback_that_is_never_due_is_refused(callback):
    with pytest.raises(ConfigError, match=r"every_n_steps is 0: give 1 or more"):
        callback(every_n_steps=0)
