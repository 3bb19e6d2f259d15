"""Processes of one launch agree on its time, and can still form their process group."""

import os
import time

import pytest
import torch.distributed

from apo_lightning.run.launching import launch_time
from processes import free_port, on_two_ranks, start_script
from running import RUN


def launched(rank, variables, port, folder):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", **variables)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    time.sleep(0.2 * rank)
    (folder / str(rank)).write_text(launch_time().isoformat())
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("variables", [{"TORCHELASTIC_RUN_ID": "test"}, {}])  # {}: by hand, as DeepSpeed's launcher
def test_a_process_that_comes_later_takes_the_time_of_the_first(variables, tmp_path):
    on_two_ranks(launched, variables, free_port(), tmp_path)
    first, second = ((tmp_path / rank).read_text() for rank in "01")
    assert first == second


@pytest.mark.parametrize("folder", ["hydra.run.dir={}/run", "seed=1"])
def test_ranks_that_the_trainer_does_not_ask_for_are_refused_before_they_wait_for_each_other(folder, tmp_path):
    (tmp_path / "configs").mkdir()
    script = start_script("train", *RUN, folder.format(tmp_path), num_ranks=2, cwd=tmp_path)
    assert script.wait() == [1, 1]
    for line in script.said.strip().splitlines():
        assert line.startswith("error: torchrun has started this process")
        assert "asks for 1 process " in line
    assert [path.name for path in tmp_path.iterdir()] == ["configs"]
