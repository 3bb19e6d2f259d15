"""Costs of runs, and the methods at equal cost; every number is worked out by hand from three logged steps."""

from pathlib import Path

import pandas as pd
import pytest

from apo_lab.reporting.records import RunCard
from apo_lab.reporting.tables.costs import cost_table, run_costs
from apo_lab.reporting.tables.equal_budget import equal_budget_table

CONFIG = {"seed": "1", "prompts_per_step": "4", "group_size": "2", "trainer.devices": "8", "trainer.num_nodes": "2"}


def run(algo: str = "apo", *, tokens: float = 100.0, seed: int = 1, **columns: list[float]) -> RunCard:
    """Three steps of 8 completions, 225 seconds on 16 devices: one GPU-hour a step."""
    steps = {
        "train/completion_tokens": [float("nan"), tokens, tokens, tokens],
        "train/skipped_fraction": [float("nan"), 0.25, 0.5, 0.75],
        "time/step": [float("nan"), 200.0, 200.0, 200.0],
        "time/between_steps": [float("nan"), 25.0, 25.0, 25.0],
    }
    table = pd.DataFrame({**steps, **columns}, index=pd.Index([0, 1, 2, 3], name="step"))
    folder = Path(f"{algo}_{seed}")
    config = {**CONFIG, "seed": f"{seed}"}
    return RunCard(folder=folder, algo=algo, model="tiny", overrides={}, config=config, metrics=table)


def validated(ones: list[float], many: list[float]) -> dict[str, list[float]]:
    return {"val/sums/pass@1": ones, "val/sums/pass@8": many, "val/sums/truncated_fraction": ones}


def texts(table) -> list[list[str]]:
    return [[row.section, *(cell.text for cell in row.cells)] for row in table.rows]


def test_costs_add_up_over_the_steps():
    # 8 completions of 100 tokens a step; 75 %, 50 % and 25 % of them are trained on.
    costs = run_costs(run())
    assert costs["completions"].tolist() == [8, 16, 24]
    assert costs["sampled tokens"].tolist() == [800, 1600, 2400]
    assert costs["trained tokens"].tolist() == [600, 1000, 1200]
    assert costs["device-hours"].tolist() == pytest.approx([1, 2, 3])


def test_all_rounds_of_dynamic_sampling_are_paid_for():
    rounds = {
        "sampling/num_prompts": [float("nan"), 10.0, 10.0, 10.0],
        "sampling/num_tokens": [float("nan")] + [3e3] * 3,
    }
    costs = run_costs(run("dapo", **rounds))
    assert costs["completions"].tolist() == [20, 40, 60]
    assert costs["sampled tokens"].tolist() == [3000, 6000, 9000]
    assert costs["trained tokens"].tolist() == [600, 1000, 1200]


def test_the_table_has_the_mean_of_a_run_and_the_methods_in_the_papers_order():
    runs = [run(), run("grpo", tokens=50.0, seed=1), run("grpo", tokens=150.0, seed=2)]
    assert texts(cost_table(runs)) == [
        ["tiny", "GRPO", "2", "3", "24", "2,400", "1,200", "3"],
        ["tiny", "APO", "1", "3", "24", "2,400", "1,200", "3"],
    ]
    assert cost_table([RunCard(folder=Path("x"), algo="apo", model="tiny", overrides={})]).rows == ()


def test_methods_are_compared_where_each_has_spent_the_cheapest_runs_total():
    nan = float("nan")
    long = run("apo", **validated([0.1, 0.2, 0.3, 0.9], [0.2, 0.4, 0.6, 0.9]))
    # Half the tokens a step: 1,200 in all, which APO has spent between its first and second step.
    short = run("grpo", tokens=50.0, **validated([0.1, nan, 0.5, nan], [0.2, nan, 0.7, nan]))
    assert texts(equal_budget_table([long, short])) == [
        ["tiny, 1,200 sampled tokens", "GRPO", "1", "sums, validation", "8", "2", "50.00", "70.00"],
        ["tiny, 1,200 sampled tokens", "APO", "1", "sums, validation", "8", "1", "20.00", "40.00"],
        ["tiny, 3 device-hours", "GRPO", "1", "sums, validation", "8", "2", "50.00", "70.00"],
        ["tiny, 3 device-hours", "APO", "1", "sums, validation", "8", "3", "90.00", "90.00"],
    ]


def test_seeds_are_averaged_and_a_run_without_an_evaluation_is_listed_without_numbers():
    seeds = [run("apo", seed=seed, **validated([0.0, one, one, one], [1.0] * 4)) for seed, one in ((1, 0.2), (2, 0.4))]
    rows = texts(equal_budget_table([*seeds, run("grpo")]))[:2]
    assert rows == [
        ["tiny, 2,400 sampled tokens", "GRPO", "1", "–", "–", "–", "–", "–"],
        ["tiny, 2,400 sampled tokens", "APO", "2", "sums, validation", "8", "3", "30.00", "100.00"],
    ]


@pytest.mark.parametrize(("tokens", "steps"), [(100.9, "3"), (120.0, "2 to 3")])
def test_a_point_may_exceed_the_budget_by_one_per_cent_and_steps_are_not_averaged(tokens, steps):
    seeds = [
        run("apo", tokens=each, seed=seed, **validated([0.0] * 4, [1.0] * 4))
        for seed, each in ((1, 100.0), (2, tokens))
    ]
    (apo, *_) = texts(equal_budget_table([*seeds, run("grpo", tokens=200.0)]))[1:]
    assert apo[:6] == ["tiny, 2,400 sampled tokens", "APO", "2", "sums, validation", "8", steps]


def test_exact_measures_are_a_row_of_their_own():
    exact = {f"val/locks/exact/pass@{k}": [0.1 * k] * 4 for k in (1, 8)}
    rows = texts(equal_budget_table([run("apo", **exact, **validated([0.3] * 4, [0.4] * 4)), run("grpo")]))
    apo = [row[3:5] + row[6:] for row in rows if row[1] == "APO" and "tokens" in row[0]]
    assert apo == [["locks, exact", "8", "10.00", "80.00"], ["sums, validation", "8", "30.00", "40.00"]]


def test_evaluated_snapshots_count_too():
    columns = {"snapshot/math500/pass@1": [0.1, 0.2, 0.3, 0.4], "snapshot/math500/pass@16": [0.5] * 4}
    rows = texts(equal_budget_table([run("apo", **columns), run("grpo", tokens=50.0)]))
    assert rows[1] == ["tiny, 1,200 sampled tokens", "APO", "1", "MATH-500", "16", "1", "20.00", "50.00"]
