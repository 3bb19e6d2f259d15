"""`make gpu`: how a check is judged, that no section hides another, and one part as it is run."""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import AutoConfig

from apo_plan.shapes import shape_of
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import rows as gpu_rows
from benchmarks.gpu import sections as gpu_sections
from benchmarks.gpu import update as gpu_update
from composing import ROOT

SECTION = gpu_sections.Section("b", "gpu.kernels", "made up", 60)


@pytest.mark.parametrize(
    ("value", "bars", "verdict"),
    [
        (1.25, {"at_most": 1.25}, "ok"),
        (1.26, {"at_most": 1.25}, "MISSED"),
        (0.45, {"at_least": 0.45}, "ok"),
        (0.8, {"at_least": 0.85, "at_most": 1.15}, "MISSED"),
        (math.nan, {"at_most": 1.0}, "MISSED"),
        (math.nan, {}, "ok"),
    ],
)
def test_a_number_is_held_against_its_bars_and_none_misses_them(value, bars, verdict):
    assert gpu_rows.judged("it", value, **bars).verdict == verdict


def two_rows_and_an_error():
    yield gpu_rows.Row(check="first")
    yield gpu_rows.Row(check="second")
    raise RuntimeError("it broke\nhere")


def test_what_fails_leaves_the_rows_before_it_and_says_behind_which_it_stands():
    *before, last = gpu_rows.attempt("all", two_rows_and_an_error())
    assert [row.check for row in before] == ["first", "second"]
    assert (last.check, last.verdict) == ("behind “second”", "FAILED: RuntimeError: it broke here")


def test_a_row_survives_its_file_and_a_number_that_is_none_becomes_null():
    row = gpu_rows.judged("größer", 0.5, at_most=1, seconds=2.0)
    assert gpu_rows.from_line(gpu_rows.to_line(row)) == row
    assert json.loads(gpu_rows.to_line(gpu_rows.judged("it", math.nan)))["figures"] == {"value": None}


def names(sections):
    return [section.name for section in sections]


def test_sections_are_asked_for_by_call_part_or_name_and_each_comes_once():
    chosen = gpu_sections.chosen(["head tiles", "rates", "a", "head tiles"])
    assert names(chosen) == ["head tiles", "rates", "tiny", "smollm2"]
    assert gpu_sections.chosen(["first"]) == list(gpu_sections.FIRST)
    assert gpu_sections.chosen([]) == list(gpu_sections.SECTIONS)
    with pytest.raises(argparse.ArgumentTypeError, match="no section 'f': choose among 'first', 'second', 'run', 'a'"):
        gpu_sections.chosen(["a", "f"])


def test_what_cannot_run_here_has_a_row_with_its_reason():
    sections, rows = gpu_sections.divide(gpu_sections.chosen(["a", "d"]), frozenset({"cpu"}))
    assert names(sections) == ["tiny"]
    verdicts = {row.check: row.verdict for row in rows}
    assert verdicts["smollm2"] == "not run: no GPU"
    assert verdicts["graphs, 512"] == "not run: no GPU and vLLM is not installed"
    assert verdicts["a second engine"] == "not run: vLLM is not installed"


def test_a_gpu_with_vllm_runs_everything_but_what_stands_in_for_it():
    sections, rows = gpu_sections.divide(gpu_sections.SECTIONS, frozenset({"cuda", "vllm"}))
    assert rows == []
    assert set(gpu_sections.SECTIONS) - set(sections) == {s for s in gpu_sections.SECTIONS if "cpu" in s.needs}


def test_what_is_timed_on_a_gpu_runs_alone_and_in_its_place():
    lots = list(map(names, gpu_sections.together(gpu_sections.FIRST, "cuda")))
    assert lots[:3] == [["real run", "attention", "head tiles"], ["llama3b, compiled"], ["head"]]
    assert [name for lot in lots for name in lot] == names(gpu_sections.FIRST)
    assert list(gpu_sections.together(gpu_sections.FIRST, "cpu")) == [list(gpu_sections.FIRST)]


def test_sections_behind_the_budget_are_not_begun(tmp_path):
    (row,) = gpu.run_section(SECTION, "cpu", tmp_path, time.monotonic() + gpu.LEAST_SECONDS - 1)
    assert (row.part, row.verdict) == ("b kernels", "not run: the time was up")


def run_python(code, folder, seconds):
    (folder / "logs").mkdir()
    rows_file = folder / "logs" / "made_up.jsonl"
    row = gpu_rows.to_line(gpu_rows.Row(check="one", part="b kernels"))
    head = f"import pathlib; pathlib.Path({str(rows_file)!r}).write_text({row + chr(10)!r})\n"
    return gpu.in_own_process(SECTION, [sys.executable, "-c", head + code], rows_file, seconds)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit('no memory\\n')", "no memory"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL; the log is made_up.log"),
    ],
)
def test_a_process_that_dies_leaves_what_it_had_and_why(code, reason, tmp_path):
    one, last = run_python(code, tmp_path, 60)
    assert one.check == "one"
    assert (last.check, last.verdict) == ("behind “one”", f"FAILED: {reason}")
    assert gpu_rows.from_line((tmp_path / "rows.jsonl").read_text()) == last


def test_a_process_that_hangs_is_killed_with_all_that_it_started(tmp_path):
    child = tmp_path / "child"
    code = f"""
import pathlib, subprocess, sys, time
process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(child)!r}).write_text(str(process.pid))
time.sleep(600)
"""
    *_, last = run_python(code, tmp_path, 5)
    assert last.verdict == "FAILED: killed after 5 s"
    status = Path(f"/proc/{child.read_text()}/status")
    while is_alive(status):  # a signal has been sent, and is obeyed when the kernel comes to it
        time.sleep(0.1)


def is_alive(status: Path) -> bool:
    try:
        return "State:\tZ" not in status.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_fewer_layers_have_the_parameters_that_a_smaller_model_has():
    def shape(layers):
        fields = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 256}
        return shape_of(AutoConfig.for_model("llama", num_hidden_layers=layers, **fields))

    assert gpu_update.with_layers(shape(6), 2) == shape(2)
    run = gpu_update.run_shape("cuda", 1000, 100, "recomputing")
    needed = gpu_update.planned_bytes(shape(4), run)
    assert [gpu_update.layers_that_fit(shape(6), run, needed + more) for more in (0, -1)] == [4, 3]


@pytest.mark.long
@pytest.mark.slow
def test_the_rates_of_this_machine_as_the_command_prints_them(tmp_path):
    options = ("rates", "--device=cpu", f"--output={tmp_path / 'out'}")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *options],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "| rates | overrides | `rates.model_flops_per_second=" in done.stdout, done.stderr
    rows = [gpu_rows.from_line(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert gpu_rows.table(rows) in done.stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["machine"]["device"] == "cpu"
    rates = next(row["figures"] for row in results["rows"] if row["check"] == "overrides")
    assert all(rate > 0 for rate in rates.values())
    assert (tmp_path / "out" / "table.md").read_text() in done.stdout
    assert done.returncode == any(row["verdict"].startswith(("MISSED", "FAILED")) for row in results["rows"])
