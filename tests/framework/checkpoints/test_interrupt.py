"""Ctrl-C during a run: what is kept, and how the run continues."""

import os
import signal

import pytest

from apo_lightning.callbacks import StepCallback
from processes import start_script
from running import RUN, training_rows, without_clock


class Interrupt(StepCallback):
    """Presses Ctrl-C at the end of step 2, once or twice."""

    def __init__(self, times):
        self.times = times

    def on_step(self, step):
        if step.step == 2:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def interrupted(folder, times):
    """A run of four steps with a checkpoint after each: its exit status and what it printed."""
    stop = f"+callbacks.stop={{_target_: {__name__}.Interrupt, times: {times}}}"
    command = (*RUN, stop, "trainer.max_steps=4", "checkpoint.save_every=1", f"hydra.run.dir={folder}")
    script = start_script("train", *command)
    return script.wait(), script.said


def test_ctrl_c_saves_the_step_and_prints_the_command_that_continues(tmp_path):
    status, said = interrupted(tmp_path / "a run", times=1)
    assert status == [75]
    assert "the run ends where it can be saved; Ctrl-C again ends it at once" in said
    assert "stopped by SIGINT in step 3; kept: checkpoint step_000002" in said
    (line,) = [line for line in said.splitlines() if line.startswith("continue with: ")]
    assert line.startswith("continue with: apo train model=tiny engine=transformers")
    assert line.endswith(f"'hydra.run.dir={tmp_path / 'a run'}' resume=auto")
    assert "Traceback" not in said


def test_a_second_ctrl_c_ends_the_run_at_once(tmp_path):
    status, said = interrupted(tmp_path / "run", times=2)
    assert status == [75]
    assert "ended at once by a second Ctrl-C, with what was saved before" in said
    assert len(training_rows(tmp_path / "run")) == 1  # step 2 was not logged
    assert "Traceback" not in said


REWARD = ("reward=callable", "reward.function._target_=interrupting.interrupted_with_its_children")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_a_signal_has_done_to_a_rewards_children_is_no_verdict(name, tmp_path):
    sizes = (*RUN, *REWARD, "trainer.max_steps=2", "data.num_validation=0")
    stopped = start_script("train", *sizes, f"hydra.run.dir={tmp_path}/stopped", SIGNAL=name)
    assert stopped.wait() == [75], stopped.said
    assert f"stopped by {name} in step 2; kept: checkpoint step_000001" in stopped.said
    start_script("train", *sizes, f"hydra.run.dir={tmp_path}/stopped", "resume=auto").finish()
    start_script("train", *sizes, f"hydra.run.dir={tmp_path}/whole").finish()
    stopped, whole = ([without_clock(row) for row in training_rows(tmp_path / run)] for run in ("stopped", "whole"))
    assert stopped == whole
    assert [row["train/reward"] for row in whole] == ["0.5", "0.5"]
    assert all(float(row["train/grad_norm"]) > 0 for row in whole)
