"""Real runs on two processes, of which one fails while the other waits for it in a collective."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from apo_lightning.errors import StaleWeightsError
from apo_lightning.rollout.transformers_engine import TransformersEngine
from composing import ROOT

pytestmark = pytest.mark.slow


class FaultyEngine(TransformersEngine):
    """Fails on one rank at the second sync, when the first optimizer step is done."""

    def sync_weights(self, named_weights, version):
        super().sync_weights(named_weights, version)
        rank, fault = os.environ["FAULT"].split()
        if version < 2 or os.environ.get("LOCAL_RANK", "0") != rank:
            return
        print(f"failing at {time.time()}", flush=True)
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise StaleWeightsError("stale weights on this rank")


@pytest.mark.parametrize(
    ("trainer", "fault", "error"),
    [
        ("ddp_cpu2", "1 killed", "error: rank 1: was ended by SIGKILL; if nobody did"),
        ("fsdp_cpu2", "1 stale", "error: rank 1: stale weights on this rank"),
    ],
)
def test_one_line_names_the_rank_that_failed_and_nothing_is_left_running(tmp_path, trainer, fault, error):
    command = [
        *(sys.executable, "train.py", "model=tiny", "callbacks=none", f"trainer={trainer}", "trainer.max_steps=2"),
        *("data.num_validation=2", "prompts_per_step=2", "prompts_per_minibatch=2", "group_size=2"),
        *("engine=transformers", f"engine._target_={__name__}.FaultyEngine", f"hydra.run.dir={tmp_path}"),
    ]
    paths = os.pathsep.join((str(ROOT / "tests" / "run"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "FAULT": fault}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
    )
    failed_at = re.search(r"failing at ([\d.]+)", done.stdout)
    assert failed_at is not None, done.stderr
    assert time.time() - float(failed_at[1]) < 30
    assert done.returncode == 1, done.stderr
    assert [line for line in done.stderr.splitlines() if "error: " in line] == [done.stderr.splitlines()[-1]]
    assert done.stderr.splitlines()[-1].startswith(error)
    assert "Traceback" not in done.stderr
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).returncode == 1
