import math
from dataclasses import replace

import pytest

from apo_lab.diagnostics import PromptHistory
from apo_lightning.errors import ConfigError
from factories import make_step


def visit(callback, step, groups, answers=None):
    """`groups`: right samples of each prompt, of four; `answers`: what each sample answered."""
    statuses = tuple(status for correct in groups for status in ["correct"] * correct + ["incorrect"] * (4 - correct))
    made = make_step(statuses, group_size=4, step=step)
    if answers is not None:
        verdicts = tuple(replace(v, extracted=a) for v, a in zip(made.rollouts.verdicts, answers, strict=True))
        made = replace(made, rollouts=replace(made.rollouts, verdicts=verdicts))
    return callback.on_step(made)


def test_the_numbers_derived_by_hand():
    callback = PromptHistory(window_visits=2)
    first = visit(callback, 1, [1, 0, 4])
    assert first["history/num_revisited"] == 0
    assert first["history/num_full_windows"] == 0
    assert math.isnan(first["history/pooled@4"])
    metrics = visit(callback, 2, [0, 0, 1], answers="aabb aaac a".replace(" ", "") + "bcd")
    expected = {
        "num_prompts": 3,
        "num_initially_solved": 2,
        "num_revisited": 3,
        "num_lost": 1,
        "num_recovered": 0,
        "net_recovered": -1,
        "net_p_value": 1.0,  # two-sided, of one change
        "num_full_windows": 3,
        "num_unparsed": 0,
        "num_too_few_answers": 0,
        # Two of four: of {2,2} 1 + 4/6, of {3,1} 1 + 3/6, of {1,1,1,1} 2.
        "distinct_answers@2": (10 / 6 + 9 / 6 + 2) / 3,
        "missing_mass": (0 + 1 / 4 + 1) / 3,
        # C = 1, 0, 5 of N = 8; 1 − C(7,4)/C(8,4) = 1/2 and, with three wrong ones of eight, every draw of four has one.
        "pooled@4": (0.5 + 0 + 1) / 3,
    }
    found = {name: metrics[f"history/{name}"] for name in expected}
    assert found == pytest.approx(expected, abs=1e-12)
    assert set(metrics) - {f"history/{name}" for name in expected} == {"history/beta_binomial@32"}


def test_a_prompt_counts_once_with_its_last_transition():
    callback = PromptHistory()
    for step, groups in enumerate(([1, 1], [0, 1], [1, 0]), start=1):
        metrics = visit(callback, step, groups)
    assert (metrics["history/num_lost"], metrics["history/num_recovered"]) == (1, 1)
    assert metrics["history/net_p_value"] == 1


def test_samples_without_an_answer_are_no_answer():
    metrics = visit(PromptHistory(), 1, [0, 0], answers=["a", None, None, None, "a", "b", "b", None])
    assert metrics["history/num_unparsed"] == 4
    assert metrics["history/num_too_few_answers"] == 1
    assert metrics["history/distinct_answers@2"] == pytest.approx(1 + 2 / 3)
    assert metrics["history/missing_mass"] == pytest.approx(1 / 3)
    nothing = visit(PromptHistory(), 1, [0], answers=[None] * 4)
    assert math.isnan(nothing["history/distinct_answers@2"])


def test_gone_on_from_its_state_and_done_again_it_is_the_unbroken_history():
    whole, first, second = PromptHistory(), PromptHistory(), PromptHistory()
    steps = [[1, 0], [0, 2], [3, 3]]
    for step, groups in enumerate(steps, start=1):
        expected = visit(whole, step, groups)
        if step < 3:
            visit(first, step, groups)
    second.load_state_dict(first.state_dict())
    # The step after the checkpoint was done before the run broke off, and is done again.
    visit(second, 3, [0, 0])
    assert visit(second, 3, steps[2]) == expected
    assert second.state_dict() == whole.state_dict()


def test_the_visits_of_all_ranks_are_entered_by_prompt(monkeypatch):
    import apo_lab.diagnostics.prompt_history as module

    together = PromptHistory()
    expected = visit(together, 1, [1, 0, 4])
    parts = [visit for _, visit in sorted(together.visits.items())]
    halves = PromptHistory()
    monkeypatch.setattr(module, "items_of_all_ranks", lambda items: [*[(f"p{i}", parts[i][0]) for i in (1, 2)], *items])
    assert visit(halves, 1, [1]) == expected
    assert halves.visits == together.visits


def test_a_window_of_one_is_refused():
    with pytest.raises(ConfigError, match="window_visits is 1"):
        PromptHistory(window_visits=1)
