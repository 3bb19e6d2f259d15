"""Launchers × devices: the run is as many ranks as were started, or is refused in one line."""

import os

import pytest

from apo_lightning.common.launch import BY_HAND, SRUN, TORCHRUN, check_launch, is_first_process, launch
from apo_lightning.errors import ConfigError

VARIABLES = (
    "TORCHELASTIC",
    "SLURM_",
    "LOCAL_",
    "RANK",
    "WORLD",
    "NODE_",
    "GROUP_",
    "MASTER_",
    "OMPI",
    "PMI",
    "MV2",
    "JSM",
    "FLUX",
    "HOROVOD",
)
MEET = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def torchrun(size: int, rank: int) -> dict[str, str]:
    return {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": str(size), **by_hand(size, rank), "RANK": str(rank)}


def by_hand(size: int, rank: int) -> dict[str, str]:
    """As Lightning's launcher sets them."""
    return {"LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "NODE_RANK": "0", **MEET}


def srun(size: int, rank: int) -> dict[str, str]:
    ranks = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"}
    return {"SLURM_NTASKS": str(size), "SLURM_NTASKS_PER_NODE": str(size), **ranks}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith(VARIABLES)]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "devices", "expected"),
    [
        ({}, 1, (None, 1, 0)),
        ({}, 2, (None, 1, 0)),  # Lightning will start the other
        (torchrun(1, 0), 1, (TORCHRUN, 1, 0)),
        (torchrun(2, 1), 2, (TORCHRUN, 2, 1)),
        (torchrun(2, 1) | srun(1, 0), 2, (TORCHRUN, 2, 1)),
        (torchrun(1, 0) | srun(2, 1), 1, (TORCHRUN, 1, 0)),
        (by_hand(2, 1), 2, (BY_HAND, 2, 1)),
        (by_hand(2, 1) | {"OMPI_COMM_WORLD_SIZE": "1"}, 2, (BY_HAND, 2, 1)),
        (by_hand(2, 1) | {"SLURM_NTASKS": "2", "SLURM_JOB_NAME": "bash", "SLURM_PROCID": "0"}, 2, (BY_HAND, 2, 1)),
        (srun(1, 0), 1, (SRUN, 1, 0)),
        (srun(2, 1), 2, (SRUN, 2, 1)),
        (srun(2, 0) | {"SLURM_JOB_NAME": "interactive"}, 1, (None, 1, 0)),
        ({"SLURM_PROCID": "0"}, 1, (None, 1, 0)),
        ({"LOCAL_RANK": "0"}, 1, (BY_HAND, 1, 0)),
        ({"WORLD_SIZE": "2"}, 1, (None, 1, 0)),  # read by nobody
        ({"NODE_RANK": "0"}, 2, (None, 1, 0)),
        (srun(2, 0) | {"SLURM_JOB_NAME": "bash", "SLURM_STEP_NUM_TASKS": "1"}, 2, (None, 1, 0)),  # srun --pty bash
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, 2, (None, 1, 0)),
        ({"PAGE_SIZE": "4 KiB", "PAGE_RANK": "0"}, 1, (None, 1, 0)),
    ],
)
def test_a_launch_that_can_be_is_taken_as_it_is(variables, devices, expected, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check_launch(devices, num_nodes=1)
    found = launch()
    assert (found.launcher, found.size, found.rank) == expected
    monkeypatch.setattr("apo_lightning.common.launch._is_first", {})
    assert is_first_process() is (found.rank == 0)
    monkeypatch.delenv("WORLD_SIZE", raising=False)  # by Lightning, after a validation
    assert is_first_process() is (found.rank == 0)


@pytest.mark.parametrize(
    ("variables", "devices", "words"),
    [
        ({"LOCAL_RANK": "1"}, 1, "LOCAL_RANK=1.* no rank 1 of 1.*unset LOCAL_RANK"),
        ({"LOCAL_RANK": "0"}, 2, "LOCAL_RANK=0.* asks for 2 processes.*unset LOCAL_RANK"),
        ({"RANK": "1"}, 2, "RANK=1.* no rank 1 of 1"),
        ({"RANK": "1", "LOCAL_RANK": "0"}, 1, "not of one rank"),
        ({"NODE_RANK": "1"}, 1, "NODE_RANK=1"),
        ({"LOCAL_RANK": "x"}, 1, "LOCAL_RANK is 'x'.*not a number"),
        ({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, 2, "2 ranks also need MASTER_PORT"),
        (by_hand(2, 1), 1, "WORLD_SIZE=2.* asks for 1 process "),
        (torchrun(2, 0), 1, "torchrun .*asks for 1 process .*torchrun --nproc-per-node=1"),
        (torchrun(1, 0), 2, "torchrun .*asks for 2 processes.*torchrun --nproc-per-node=2"),
        (torchrun(2, 0) | {"LOCAL_WORLD_SIZE": "1"}, 2, "2 a node"),
        ({"SLURM_PROCID": "2"}, 1, "SLURM_PROCID=2.*unset SLURM_PROCID"),
        ({"SLURM_NTASKS": "2"}, 1, "SLURM_NTASKS=2.*SLURM_PROCID"),
        (srun(2, 0), 1, "asks for 1 process .*srun --ntasks-per-node=1"),
        (srun(1, 0), 2, "asks for 2 processes.*srun --ntasks-per-node=2"),
        (srun(1, 0) | {"LOCAL_RANK": "1"}, 1, "LOCAL_RANK=1"),
        (srun(2, 1) | {"LOCAL_RANK": "0"}, 2, "srun says rank 1"),
        (srun(2, 1) | {"SLURM_JOB_NAME": "bash"}, 1, "SLURM_PROCID=1"),
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
            2,
            "OMPI_COMM_WORLD_SIZE=2.*starts no ranks.*torchrun or srun",
        ),
        (srun(2, 0) | {"SLURM_JOB_NAME": "bash", "SLURM_STEP_NUM_TASKS": "2"}, 2, "bash or interactive starts no"),
        ({"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "NODE_RANK": "1", **MEET}, 1, "several machines"),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, 1, "HOROVOD_SIZE=2.*starts no ranks"),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"}, 1, "FLUX_JOB_SIZE=2.*starts no ranks"),
        ({"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2"}, 1, "JSM_NAMESPACE_SIZE=2.*starts no ranks"),
        ({"SLURM_PROCID": "0", "PMI_SIZE": "2", "PMI_RANK": "1"}, 2, "PMI_SIZE=2.*starts no ranks"),
    ],
)
def test_a_launch_that_cannot_be_is_one_line_with_the_variables(variables, devices, words, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        check_launch(devices, num_nodes=1)


def test_several_nodes_are_started_by_a_launcher():
    with pytest.raises(ConfigError, match=r"num_nodes is 2.*torchrun or srun"):
        check_launch(1, num_nodes=2)
