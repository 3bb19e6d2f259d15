"""The page that follows a run: its state, its curves, and what it shows of completions."""

import json
import os
import re

import pytest
import yaml

from apo_lab.reporting.live import live_page, panels, read_live
from apo_lightning.common.files import to_json
from apo_lightning.errors import ConfigError

STARTED = 1_000_000.0
HOSTILE = "</pre><script>alert('x')</script><img src=http://x.example/>"
COLUMNS = ("step", "train/reward", "train/pass@1", "val/sums/pass@1", "time/step", "time/generate", "time/update")


@pytest.fixture
def folder(tmp_path):
    """A run of three steps that has begun."""
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(yaml.safe_dump({"trainer": {"max_steps": 3}}))
    os.utime(tmp_path / ".hydra" / "config.yaml", (STARTED, STARTED))
    return tmp_path


def log(folder, *rows):
    """`metrics.csv`, written one minute after the start."""
    lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in rows)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    os.utime(folder / "metrics.csv", (STARTED + 60, STARTED + 60))


def write_completions(folder, completion):
    line = {"step": 2, "sample": 0, "status": "correct", "reward": 1.0, "advantage": 0.5, "num_tokens": 4}
    line |= {"finish_reason": "stop", "answer": "4", "prompt": "2 + 2 =", "completion": completion}
    (folder / "rollouts").mkdir()
    lines = [line, line | {"sample": 1, "completion": "the second of its prompt"}]
    (folder / "rollouts" / "step_000002.jsonl").write_bytes(b"\n".join(map(to_json, lines)))


def test_a_run_before_its_first_step_is_waiting(folder):
    run = read_live(folder, now=STARTED + 90)
    assert run.state == "waiting"
    assert run.headline == "None of 3 steps has ended yet; the run wrote its last file 1:30 ago."
    assert "Nothing was logged yet." in live_page(run)


def test_a_run_with_a_recent_step_is_running_and_says_how_long_it_will_take(folder):
    log(folder, (1, 0.5, 0.5, "", 4.0, 3.0, 1.0))
    run = read_live(folder, now=STARTED + 65)
    assert (run.state, run.headline) == ("running", "Step 1 of 3, 4.0 s a step, about 0:08 left.")
    assert run.phases == [("generate", 3.0), ("update", 1.0)]


def test_a_run_without_a_new_step_for_ten_of_its_steps_is_silent(folder):
    log(folder, (1, 0.5, 0.5, "", 30.0, 3.0, 1.0))
    assert read_live(folder, now=STARTED + 60 + 299).state == "running"
    run = read_live(folder, now=STARTED + 60 + 301)
    assert run.state == "silent"
    assert "ended 5:01 ago" in run.headline
    assert "resume=auto" in run.headline


def test_a_run_with_a_summary_of_all_steps_has_ended_and_its_page_stops_refreshing(folder):
    log(folder, (3, 0.5, 0.5, "", 4.0, 3.0, 1.0))
    assert "http-equiv" in live_page(read_live(folder, now=STARTED + 61))
    (folder / "summary.json").write_text(json.dumps({"steps": 3}))
    run = read_live(folder, now=STARTED + 9000)
    assert (run.state, run.headline) == ("ended", "The run has ended, after 3 steps.")
    assert "http-equiv" not in live_page(run)
    assert 'data-state="ended"' in live_page(run)


def test_a_run_without_a_summary_has_ended_when_its_last_step_is_no_longer_recent(folder):
    log(folder, (3, 0.5, 0.5, "", 4.0, 3.0, 1.0))
    assert read_live(folder, now=STARTED + 61).state == "running"
    assert read_live(folder, now=STARTED + 9000).state == "ended"


def test_a_run_that_is_resumed_for_more_steps_has_not_ended(folder):
    log(folder, (2, 0.5, 0.5, "", 4.0, 3.0, 1.0))
    (folder / "summary.json").write_text(json.dumps({"steps": 2}))
    assert read_live(folder, now=STARTED + 61).state == "running"


def test_a_curve_spans_its_panel(folder):
    log(folder, (1, 0.0, 0.0, "", 4.0, 3.0, 1.0), (2, 1.0, 0.0, 0.25, 4.0, 3.0, 1.0), (3, 0.5, 0.0, "", 4.0, 3.0, 1.0))
    reward, accuracy, *_ = read_live(folder, now=STARTED).panels
    assert (reward.title, reward.bounds, reward.steps) == ("reward", (0.0, 1.0), (1, 3))
    assert reward.lines[0].points == [(0.0, 100.0), (50.0, 0.0), (100.0, 50.0)]  # y from the top
    assert [(line.label, line.is_dots, line.last) for line in accuracy.lines] == [
        ("pass@1", False, 0.0),
        ("val/sums/pass@1", True, 0.25),
    ]
    assert accuracy.lines[1].points == [(50.0, 0.0)]


def test_a_panel_without_a_value_is_left_out():
    assert panels({}) == []


def test_the_page_shows_a_completion_of_each_prompt_and_runs_nothing_that_it_says(folder):
    log(folder, (2, 0.5, 0.5, "", 4.0, 3.0, 1.0))
    write_completions(folder, HOSTILE)
    page = live_page(read_live(folder, now=STARTED))
    assert "&lt;script&gt;alert" in page
    assert page.count("<script") == 1
    assert "the second of its prompt" not in page
    assert re.findall(r'(?:src|href)="(?!/)', page) == []  # nothing but pages of this server


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"is no training run: it has no \.hydra/config\.yaml"):
        read_live(tmp_path, now=STARTED)
