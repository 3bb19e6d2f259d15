import logging
import os
import random
import warnings

import numpy
import pytest
import torch
import torch.distributed as dist

from apo_lightning.rollout.vllm_private import default_process_group_kept, process_unchanged, stderr_to_log
from engine_contract import changes, process_state


def disturb():
    random.random()
    numpy.random.rand()
    torch.rand(1)
    os.environ["LOCAL_RANK"] = "5"
    os.environ.pop("HOME", None)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_num_threads = lambda n: None
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)


@pytest.mark.parametrize("fails", [False, True])
def test_everything_disturbed_comes_back(fails):
    before, noise = process_state(), random.getstate()
    try:
        with process_unchanged():
            disturb()
            assert set(changes(before, process_state())) >= set(before) - {"python"}
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert changes(before, process_state()) == []
    assert random.getstate() == noise


def test_stderr_goes_to_the_log_and_out_only_with_an_error(capfd, caplog):
    logger = logging.getLogger("apo_lightning.test")
    with caplog.at_level(logging.DEBUG, logger.name):
        with stderr_to_log(logger):
            os.write(2, b"from C++\n")
            warnings.warn("from Python", stacklevel=1)
        assert capfd.readouterr().err == ""
        assert caplog.messages == ["from C++"]
        with pytest.raises(ZeroDivisionError), stderr_to_log(logger):
            print(os.write(2, b"the reason\n") / 0)
        assert capfd.readouterr().err == "the reason\n"


def test_only_the_default_group_is_kept(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        subgroup = dist.new_group([0])
        with default_process_group_kept():
            dist.destroy_process_group()
            dist.destroy_process_group(dist.group.WORLD)
            dist.destroy_process_group(subgroup)
        assert dist.is_initialized()
        with pytest.raises(ValueError, match="not initialized in the world group map"):
            dist.get_backend(subgroup)
        dist.barrier()
    finally:
        dist.destroy_process_group()
