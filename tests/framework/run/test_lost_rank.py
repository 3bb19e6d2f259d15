"""Real runs on two processes, of which one fails while the other waits for it: none is left running."""

import os
import signal
import subprocess
import sys
import time

import pytest

from apo_lightning.errors import StaleWeightsError
from apo_lightning.rollout.transformers_engine import TransformersEngine
from composing import ROOT
from processes import free_port, start_script
from running import HELPERS, RUN, start_launched

pytestmark = pytest.mark.slow


class FaultyEngine(TransformersEngine):
    """At the second sync one rank fails, and the other hangs, as in a collective of NCCL."""

    def sync_weights(self, named_weights, version):
        super().sync_weights(named_weights, version)
        rank, fault = os.environ["FAULT"].split()
        if version < 2:
            return
        if os.environ.get("LOCAL_RANK", "0") != rank:
            if fault == "killed":
                time.sleep(3600)
        elif fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise StaleWeightsError("stale weights on this rank")


FAULTY = (f"engine._target_={__name__}.FaultyEngine", "trainer=fsdp_cpu2")


def is_running(folder):
    """Whether a process has the folder in its command line."""
    return subprocess.run(["pgrep", "-f", str(folder)], capture_output=True).returncode == 0


def test_no_rank_of_torchrun_outlives_one_that_was_killed(tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}")
    done = subprocess.run(
        [sys.executable, *torchrun, "train.py", *RUN, *FAULTY, f"hydra.run.dir={tmp_path}"],
        env={**os.environ, "FAULT": "1 killed", "OMP_NUM_THREADS": "1", "PYTHONPATH": HELPERS},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,  # the rank that hangs would take an hour
    )
    assert done.returncode != 0
    assert not is_running(tmp_path)
    # torchrun would have killed the other rank too, after half a minute.
    assert done.stderr.count("exitcode  : -9") == 1


@pytest.mark.parametrize("rank", ["0", "1"])
def test_no_rank_of_lightnings_launcher_outlives_one_that_was_killed(rank, tmp_path):
    """The first rank is the parent of the second."""
    assert start_launched(tmp_path, *FAULTY, FAULT=f"{rank} killed").wait() != [0]
    while is_running(tmp_path):
        time.sleep(0.1)


def test_a_rank_that_raises_is_heard_and_the_other_says_that_it_has_ended(tmp_path):
    script = start_script("train.py", *RUN, *FAULTY, f"hydra.run.dir={tmp_path}", num_ranks=2, FAULT="1 stale")
    assert script.wait() == [1, 1], script.said
    errors = sorted(line for line in script.said.splitlines() if line.startswith("error: "))
    assert errors[1] == "error: stale weights on this rank"
    assert errors[0].startswith("error: another rank of this run has ended")
    assert "Traceback" not in script.said
