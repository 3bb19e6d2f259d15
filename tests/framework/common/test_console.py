"""What reaches the terminal, and what the run's log alone."""

import io
import logging
import os
import subprocess
import sys
import time

import pytest
from rich.table import Table

from apo_lightning.common.console import quiet_libraries, say, saying, show


@pytest.fixture(autouse=True)
def loggers_as_they_were():
    root, own = logging.getLogger(), logging.getLogger("apo_lightning")
    before = root.handlers[:], own.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:], own.handlers[:] = before[:2]
    root.setLevel(before[2])


def test_our_first_warning_of_a_kind_is_said_and_all_are_kept(tmp_path, capsys):
    quiet_libraries(tmp_path / "run.log")
    ours, theirs = logging.getLogger("apo_lightning.step.update_record"), logging.getLogger("transformers")
    for budget in (64, 32):
        ours.warning("out of memory with %d: %s", budget, [1, 2])
    ours.warning("a reward of [/x]")
    ours.info("as it should be")
    ours.error("which ends the run")
    theirs.warning("please upgrade")
    assert capsys.readouterr().out.splitlines() == [
        "warning: out of memory with 64: [1, 2] (others like it: run.log)",
        "warning: a reward of [/x] (others like it: run.log)",
    ]
    kept = (tmp_path / "run.log").read_text()
    for line in ("with 64: [1, 2]", "with 32: [1, 2]", "of [/x]", "as it should be", "ends the run", "please upgrade"):
        assert line in kept


LINE = "continue with: apo train 'logger=[wandb,tensorboard]' benchmark=[math500] data.answer=:x: [/] [bold]"


def test_lines_and_cells_are_printed_as_they_are(capsys):
    say(LINE)
    assert capsys.readouterr().out == f"{LINE}\n"
    table = Table("benchmark=[math500]")
    table.add_row("logger=[wandb,tensorboard]")
    show(table)
    printed = capsys.readouterr().out
    assert "benchmark=[math500]" in printed
    assert "logger=[wandb,tensorboard]" in printed


def test_a_line_is_written_at_once(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    say("step 1 of 100")
    assert written.getvalue() == b"step 1 of 100\n"


def test_what_a_block_waits_for_is_said_until_it_ends(capsys):
    with saying("waiting for the reward", every_s=0.05):
        time.sleep(0.3)
    said = capsys.readouterr().out.splitlines()
    assert 2 <= len(said) <= 6
    assert all(line.startswith("waiting for the reward (0 s so far)") for line in said)


@pytest.mark.parametrize("place", ["a pipe that nobody reads", "a full disk"])
def test_an_output_that_breaks_ends_no_program(place):
    program = "from apo_lightning.common.console import say; say('a'); say('b'); import sys; sys.exit(3)"
    if place == "a full disk":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, output = os.pipe()
        os.close(reader)
    done = subprocess.run([sys.executable, "-c", program], stdout=output, stderr=subprocess.PIPE, check=False)
    os.close(output)
    assert (done.returncode, done.stderr) == (3, b"")


def test_what_an_encoding_has_not_is_escaped():
    program = "from apo_lightning.common.console import say; say('a\u00e9')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"a\\xe9\n", b"")


def test_no_text_has_characters_that_a_terminal_obeys(capsys):
    hostile = "\x1b]0;pwn\x07\x1b[2J\u202e"
    say(hostile)
    table = Table(hostile)
    table.add_row(hostile)
    show(table)
    printed = capsys.readouterr().out
    assert printed.count(r"\x1b]0;p") == 3
    assert not {"\x1b", "\x07", "\u202e"} & {*printed}
