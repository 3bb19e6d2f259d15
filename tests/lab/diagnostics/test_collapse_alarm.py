import math

import lightning.pytorch as pl
import pytest

from apo_lab.diagnostics import CollapseAlarm
from apo_lab.diagnostics.collapse_alarm import lost_and_gained
from apo_lightning.errors import ConfigError
from factories import make_step, make_validation


def begun(max_steps=10, interval=5, **settings):
    alarm = CollapseAlarm(**settings)
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=max_steps, val_check_interval=interval, logger=False, enable_checkpointing=False
    )
    alarm.setup(trainer, pl.LightningModule(), "fit")
    return alarm


def solved(*flags, step=0, name="sums"):
    """A pass over problems of two samples each, of which those flagged have a right one."""
    statuses = tuple(s for flag in flags for s in (("correct" if flag else "incorrect"), "incorrect"))
    return make_validation(statuses, step=step, name=name)


def test_the_numbers_derived_by_hand(capsys):
    alarm = begun()
    assert alarm.on_validated(solved(*[True] * 7, False)) is None
    metrics = alarm.on_validated(solved(*[False] * 6, True, False, step=5))
    # Six lost and none gained: (1/2)^6; two looks: 0.05/2.
    assert metrics == pytest.approx(
        {
            "alarm/sums/num_lost": 6,
            "alarm/sums/num_gained": 0,
            "alarm/sums/p_value": 1 / 64,
            "alarm/sums/level": 0.025,
            "alarm/sums/is_alarm": 1,
        }
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: held-out sums: 6 problems that were solved at step 0 have no right sample at step 5" in said
    # Against step 0, not against the look before; and it is not said twice.
    again = alarm.on_validated(solved(*[False] * 7, True, step=10))
    assert (again["alarm/sums/num_lost"], again["alarm/sums/num_gained"]) == (7, 1)
    assert capsys.readouterr().out == ""


def test_the_level_is_divided_over_looks_and_sets():
    alarm = begun(max_steps=11, interval=5)
    for name in ("sums", "products"):
        assert alarm.on_validated(solved(True, name=name)) is None
    metrics = alarm.on_validated(solved(True, step=5))
    assert metrics["alarm/sums/level"] == pytest.approx(0.05 / (3 * 2))
    assert begun(max_steps=11, interval=1.0).max_points == 1


def test_a_look_beyond_those_planned_is_not_tested():
    alarm = begun(max_steps=5, interval=5)
    alarm.on_validated(solved(*[True] * 8))
    alarm.on_validated(solved(*[True] * 8, step=5))
    late = alarm.on_validated(solved(*[False] * 8, step=10))
    assert late["alarm/sums/is_alarm"] == 0
    assert math.isnan(late["alarm/sums/level"])
    assert late["alarm/sums/p_value"] == pytest.approx(1 / 256)


def test_other_problems_and_other_numbers_of_samples_are_refused():
    with pytest.raises(ConfigError, match="not all the same"):
        lost_and_gained({"a": (2, 0)}, {"b": (2, 0)})
    with pytest.raises(ConfigError, match="problem a had 2 samples at first and has 4 now"):
        lost_and_gained({"a": (2, 0)}, {"a": (4, 0)})


def entropies(alarm, values):
    for step, value in enumerate(values, start=1):
        metrics = alarm.on_step(make_step(step=step, metrics={"train/entropy": value}))
    return metrics


def test_entropy_that_leaves_its_beginning_is_a_notice(capsys):
    alarm = begun(num_baseline=4, threshold=5.0)
    metrics = entropies(alarm, [1.0, 1.1, 1.05, 0.98, math.nan, 0.3, 0.2])
    assert metrics["alarm/entropy_cusum"] > 5
    assert metrics["alarm/entropy_num_left_out"] == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("notice: at step 6 entropy is below its level of the first 4 steps") == 1
    assert "not necessarily a failure" in said


def test_answers_are_counted_a_prompt():
    alarm = begun(num_baseline=3)
    # `make_step` has one right sample, whose answer is known, and one wrong one, whose answer is not.
    metrics = entropies(alarm, [1.0])
    assert alarm.cusums["answers"].state_dict()["first"] == [0.0]
    assert metrics["alarm/answers_num_left_out"] == 0
    unparsed = alarm.on_step(make_step(("incorrect", "incorrect")))
    assert unparsed["alarm/answers_num_left_out"] == 1


@pytest.mark.parametrize("cut", [2, 5])
def test_gone_on_from_its_state_it_says_what_the_unbroken_one_says(cut, capsys):
    values = [1.0, 1.1, 1.05, 0.98, 0.9, 0.3, 0.2]
    whole, first = begun(num_baseline=4), begun(num_baseline=4)
    expected = entropies(whole, values)
    base = solved(True, True, False)
    for alarm in (whole, first):
        alarm.on_validated(base)
        alarm.on_validated(solved(True, False, False, step=5))
    entropies(first, values[:cut])
    second = begun(max_steps=100, num_baseline=4)
    second.load_state_dict(first.state_dict())
    assert entropies(second, values[cut:]) == pytest.approx(expected, nan_ok=True)
    look = solved(False, False, True, step=10)
    assert second.on_validated(look) == whole.on_validated(look)
    assert second.state_dict()["max_looks"] == 2


@pytest.mark.parametrize(
    ("setting", "value"), [("alpha", 0.0), ("alpha", 1.0), ("num_baseline", 2), ("threshold", 0.0)]
)
def test_settings_out_of_range_are_refused(setting, value):
    with pytest.raises(ConfigError, match=f"collapse_alarm.{setting} is {value}"):
        CollapseAlarm(**{setting: value})


def test_what_it_makes_of_a_pass_stands_in_the_log_behind_it(scripted_run):
    alarm = CollapseAlarm()
    run = scripted_run([alarm], max_steps=2)
    lines = (run.folder / "metrics.csv").read_text().splitlines()
    assert "alarm/sums/p_value" in lines[0]
