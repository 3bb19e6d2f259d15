import math

import lightning.pytorch as pl
import pytest

from apo_lightning.errors import ConfigError
from apo_methods.diagnostics import CollapseAlarm
from apo_methods.diagnostics.collapse_alarm import loss_p_value, lost_and_gained
from factories import make_validation


def begun(max_steps=10, interval=5):
    alarm = CollapseAlarm()
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
    expected = {"num_lost": 6, "num_gained": 0, "p_value": 1 / 64, "level": 0.025, "is_alarm": 1}
    assert metrics == pytest.approx({f"alarm/sums/{name}": value for name, value in expected.items()})
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: held-out sums: 6 problems that were solved at step 0 have no right sample at step 5" in said
    # Against step 0, not against the look before; and it is not said twice.
    again = alarm.on_validated(solved(*[False] * 7, True, step=10))
    assert (again["alarm/sums/num_lost"], again["alarm/sums/num_gained"]) == (7, 1)
    assert capsys.readouterr().out == ""


# Exact binomial tails: nothing changed; 3 of 4, (4 + 1)/16; losses fewer than gains, 1 − 1/8.
@pytest.mark.parametrize(("lost", "gained", "p_value"), [(0, 0, 1.0), (3, 1, 5 / 16), (1, 2, 7 / 8)])
def test_the_p_value_is_that_of_fair_coins(lost, gained, p_value):
    assert loss_p_value(lost, gained) == pytest.approx(p_value, abs=1e-12)


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
    with pytest.raises(ConfigError, match=r"collapse_alarm.alpha is 1.0"):
        CollapseAlarm(alpha=1.0)


def test_gone_on_from_its_state_it_says_what_the_unbroken_one_says():
    whole, first = begun(), begun()
    for alarm in (whole, first):
        alarm.on_validated(solved(True, True, False))
        alarm.on_validated(solved(True, False, False, step=5))
    second = begun(max_steps=100)
    second.load_state_dict(first.state_dict())
    look = solved(False, False, True, step=10)
    assert second.on_validated(look) == whole.on_validated(look)
    assert second.state_dict()["max_points"] == 2


def test_what_it_makes_of_a_pass_stands_in_the_log_behind_it(scripted_run):
    run = scripted_run([CollapseAlarm()], max_steps=2)
    assert "alarm/sums/p_value" in (run.folder / "metrics.csv").read_text().splitlines()[0]
