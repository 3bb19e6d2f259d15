"""Real runs on two processes, of which one fails while the other waits for it in a collective."""

import logging
import os
import signal
import subprocess
import time

import pytest

from apo_lightning.errors import StaleWeightsError
from apo_lightning.rollout.process_guard import stderr_to_log
from apo_lightning.rollout.transformers_engine import TransformersEngine
from processes import start_script
from running import RUN, start_cold

pytestmark = pytest.mark.slow


class FaultyEngine(TransformersEngine):
    """Fails on one rank while the other starts its engine, or at the second sync, after the first optimizer step."""

    def setup(self, context):
        if os.environ["FAULT"] == "1 starting":
            with stderr_to_log(logging.getLogger("vllm")):
                if context.global_rank == 0:
                    time.sleep(3600)
            time.sleep(1)  # the other is inside by then; if it is not, the line reaches the terminal anyway
            raise StaleWeightsError("no weights on this rank")
        super().setup(context)

    def sync_weights(self, named_weights, version):
        super().sync_weights(named_weights, version)
        rank, fault = os.environ["FAULT"].split()
        if version < 2 or os.environ.get("LOCAL_RANK", "0") != rank:
            return
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise StaleWeightsError("stale weights on this rank")


FAULTY = (*RUN, f"engine._target_={__name__}.FaultyEngine")


def test_one_line_names_the_rank_that_was_killed_and_nothing_is_left_running(tmp_path):
    process = start_cold("train.py", *FAULTY, "trainer=ddp_cpu2", f"hydra.run.dir={tmp_path}", FAULT="1 killed")
    # Without the watchdog the other rank would wait for 30 minutes, which is as long as a test may take.
    _, errors = process.communicate()
    assert process.returncode == 1, errors
    assert [line for line in errors.splitlines() if "error: " in line] == [errors.splitlines()[-1]]
    assert errors.splitlines()[-1].startswith("error: rank 1: killed by SIGKILL; if nobody did")
    assert "Traceback" not in errors
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True).returncode == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [("1 stale", "rank 1: stale weights on this rank"), ("1 starting", "rank 1: no weights on this rank")],
)
def test_a_rank_that_raises_ends_the_others_and_is_named_once(tmp_path, fault, error):
    overrides = (*FAULTY, "trainer=fsdp_cpu2", f"hydra.run.dir={tmp_path}")
    script = start_script("train.py", *overrides, num_ranks=2, FAULT=fault)
    assert script.wait() == [1, 1], script.said
    assert [line for line in script.said.splitlines() if "error: " in line] == [f"error: {error}"]
    assert "Traceback" not in script.said
