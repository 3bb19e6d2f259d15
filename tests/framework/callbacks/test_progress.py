import re

from apo_lightning.callbacks import ProgressDisplay
from apo_lightning.callbacks.progress import held_out_line
from factories import make_step, make_validation

METRICS = {
    "train/reward": 0.25,
    "train/pass@1": 0.25,
    "train/pass@2": 0.5,
    "train/entropy": 1.402,
    "train/max_prob": 0.5123,
    "perf/tokens_per_second": 1239.7,
}


def measured(step, max_steps):
    return make_step(step=step, max_steps=max_steps, metrics=METRICS)


def test_there_is_one_aligned_line_a_step(scripted_run, capsys):
    scripted_run([ProgressDisplay()], max_steps=3, step_output=measured)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "held-out sums at step 0: pass@1 0.500 (1 problems)"
    assert lines[1].split() == [
        *("step", "reward", "pass@1", "pass@2", "entropy", "max-prob", "tokens/s", "s/step", "left"),
    ]
    assert lines[2].split()[:8] == ["1/3", "0.250", "0.250", "0.500", "1.402", "0.512", "1240", "3.5"]
    assert re.fullmatch(r"\d+:\d\d", lines[2].split()[8])
    assert [line.split()[0] for line in lines[2:5]] == ["1/3", "2/3", "3/3"]
    assert len({len(line) for line in lines[1:5]}) == 1
    assert lines[5] == "held-out sums at step 3: pass@1 0.500 (1 problems)"
    assert len(lines[2]) == 80
    assert "".join(lines).isascii()


def test_completions_that_could_not_be_judged_stand_beside_the_score_that_they_lower():
    line = held_out_line(make_validation(("correct", "error", "incorrect", "error")))
    assert line == "held-out sums at step 0: pass@1 0.250 (2 problems, 2 completions could not be judged)"


def test_the_header_comes_back_every_twenty_steps(scripted_run, capsys):
    scripted_run([ProgressDisplay()], max_steps=41, step_output=measured)
    assert capsys.readouterr().out.count("reward") == 3


def test_a_metric_that_was_not_logged_is_a_dash(scripted_run, capsys):
    scripted_run([ProgressDisplay()], max_steps=1)
    assert capsys.readouterr().out.splitlines()[2].split()[1:6] == ["-"] * 5
