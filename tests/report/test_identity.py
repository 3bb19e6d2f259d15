"""What is one measurement, what are seeds of one method, and what stands apart: from result files to tables."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import write_record
from apo_lightning.evaluation.records import DataCard, Estimate, EvaluationResult, ModelCard, ProblemCount
from apo_lightning.metrics.functional import pass_at_k_curve
from apo_lightning.metrics.intervals import paired_intervals
from apo_report.commands.report import report
from apo_report.evaluations import measurements, read_evaluations
from apo_report.identity import mean_over_seeds, resolved
from apo_report.records import Evaluations, Measurement, Table
from apo_report.runs import read_runs
from apo_report.tables import health_table, held_out_table, main_results
from apo_report.tables.series import average, series
from factories import sampling_settings
from report_cases import measured, write_run

DEFAULTS = {"apo": {"algo.loss.pull_coef": "0.1"}, "grpo": {}}


def evaluation(
    *correct: int,
    algo: str | None = None,
    seed: int | None = None,
    weights: str = "w",
    dtype: str = "float32",
    problems: str = "p",
    num_samples: int = 4,
    entropy: float = 1.0,
    benchmark: str = "math500",
    **how: object,
) -> EvaluationResult:
    """`correct` of the samples of each problem; every problem has the same entropy."""
    counts = tuple(
        ProblemCount(prompt_id=f"{problems}{i}", num_samples=num_samples, num_correct=c) for i, c in enumerate(correct)
    )
    curve = pass_at_k_curve(
        torch.full((len(correct),), num_samples), torch.tensor(correct), range(1, num_samples + 1)
    ).mean(0)
    means = tuple(Estimate(value=value, low=value - 0.01, high=value + 0.01) for value in curve.tolist())
    return EvaluationResult(
        benchmark=benchmark,
        model=ModelCard(name="tiny", path="x", weights_sha256=weights, dtype=dtype, algo=algo, seed=seed),
        data=DataCard(source="x", sha256=problems, num_problems=len(correct), num_available=len(correct)),
        settings=sampling_settings(num_samples=num_samples, **how),
        versions={},
        verdicts={"correct": sum(correct)},
        num_truncated=0,
        num_tokens=1,
        metrics={
            "pass@1": means[0],
            f"pass@{num_samples}": means[-1],
            "entropy": Estimate(value=entropy, low=entropy - 0.01, high=entropy + 0.01),
            "diversity": Estimate(value=0.5, low=0.4, high=0.6),
        },
        pass_at_k=means,
        problems=counts,
        by_problem={"entropy": (entropy,) * len(correct), "diversity": (0.5,) * len(correct)},
    )


def found(folder: Path, *results: EvaluationResult) -> tuple[Measurement, ...]:
    """Written to disk, read and told apart."""
    for index, result in enumerate(results):
        write_record(folder / str(index) / "results.json", result)
    return measurements((), read_evaluations([folder]), DEFAULTS)


def lines(table: Table, *columns: str) -> list[tuple[str, ...]]:
    """Section and cells of some columns, row by row."""
    titles = [column.title for column in table.columns]
    places = [next(i for i, title in enumerate(titles) if title.endswith(name)) for name in columns]
    return [(row.section, *(row.cells[place].text for place in places)) for row in table.rows]


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_blocks_that_are_not_compared_are_named_on_the_terminal(tmp_path, capsys, temperature):
    for index, result in enumerate((evaluation(1, 2), evaluation(2, 3, temperature=temperature))):
        write_record(tmp_path / str(index) / "results.json", result)
    options = {"title": "", "date": ""}
    report(OmegaConf.create({"runs": str(tmp_path), "output_dir": str(tmp_path / "report"), **options}))
    blocks = "tiny, temperature = 1 | tiny, temperature = 0.6"
    said = f"Measured in different ways, and so not compared with one another: {blocks}."
    page = (tmp_path / "report" / "report.html").read_text()
    assert (f"warning: {said}" in capsys.readouterr().out, said in page) == (temperature < 1, temperature < 1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"temperature": 0.6}, "temperature"),
        ({"top_p": 0.9}, "top-p"),
        ({"max_completion_tokens": 9}, "token limit"),
        ({"prompt": "Q: {problem}"}, "prompt"),
        ({"engine": "vllm"}, "engine"),
        ({"reward": "MathVerifyReward()"}, "reward"),
        ({"stop_tokens": ("<|im_end|>",)}, "stop tokens"),
        ({"dtype": "bfloat16"}, "precision"),
        ({"problems": "q"}, "problems"),
    ],
)
def test_what_decides_the_samples_names_the_block(tmp_path: Path, change: dict, name: str) -> None:
    usual = {"algo": "grpo", "stop_tokens": ()}
    one, two = evaluation(1, seed=1, weights="1", **usual), evaluation(3, seed=2, weights="2", **usual | change)
    # What only floating-point sums depend on divides no seeds.
    again = replace(one, versions={"torch": "2"}, settings=replace(one.settings, samples_per_batch=8))
    rows = lines(main_results(found(tmp_path, one, two, again)), "Seeds", "Pass@1")
    assert sorted(cells[1:] for cells in rows) == [("1", "25.00"), ("1", "75.00")]
    assert all(section.startswith(f"tiny, {name} = ") for section, *_ in rows)


def test_the_same_weights_with_the_same_settings_count_once(tmp_path: Path) -> None:
    base, short = evaluation(1, 2), evaluation(1, 0, num_samples=2)
    reseeded = replace(short, settings=replace(short.settings, seed=7))
    table = main_results(found(tmp_path, short, base, base, reseeded))
    # K is 4: the measurement of 2 samples is no longer one of its own.
    assert lines(table, "Method", "Pass@1", "Pass@4") == [("tiny", "Base", "37.50", "100.00")]


def test_other_weights_of_one_name_stand_apart_with_their_hash(tmp_path: Path) -> None:
    weights = ("1" * 64, "2" * 64)
    table = main_results(found(tmp_path, *(evaluation(1 + i, weights=hash_) for i, hash_ in enumerate(weights))))
    assert lines(table, "Method", "Pass@1") == [
        ("tiny", "Base (weights 11111111)", "25.00"),
        ("tiny", "Base (weights 22222222)", "50.00"),
    ]
    assert any("name the folders of one in runs=" in note for note in table.notes)


def test_two_checkpoints_of_one_training_seed_are_no_two_seeds(tmp_path: Path) -> None:
    runs = [("1", 1), ("2", 1), ("3", 2)]
    table = main_results(found(tmp_path, *(evaluation(1, algo="grpo", weights=w, seed=s) for w, s in runs)))
    assert [cells[1] for cells in lines(table, "Method")] == [f"GRPO (weights {w})" for w, _ in runs]


def test_means_over_training_seeds_hold_the_seeds_own_variance(tmp_path: Path) -> None:
    """Seeds at 0.20 ± 0.01 and 0.60 ± 0.01, as each says of itself, are not 0.40 ± 0.01."""
    low, high = ([n] * 40 for n in (2, 6))
    policies = [evaluation(*c, algo="apo", seed=s, weights=str(s), num_samples=10) for s, c in ((1, low), (2, high))]
    # On every other problem 0.01 nats more, so that V_P, 0.005²/39, is next to nothing.
    entropies = [tuple(mean + 0.01 * (i % 2) for i in range(40)) for mean in (0.195, 0.595)]
    seeds = [replace(p, by_problem={"entropy": e}) for p, e in zip(policies, entropies, strict=True)]
    table = main_results(found(tmp_path, *seeds))
    assert lines(table, "Seeds", "Pass@1") == [("tiny", "2", "40.00")]
    # V = V_S = 0.08/2 and t with one degree of freedom is 12.7: ± 2.5.
    assert table.rows[0].cells[2].interval == (0.0, 100.0)
    (item,) = mean_over_seeds(found(tmp_path))
    entropy = item.metrics["entropy"]
    assert (entropy.value, entropy.low) == (pytest.approx(0.4), 0.0)
    assert entropy.high == pytest.approx(0.4 + 12.706 * 0.2, abs=1e-3)


@pytest.mark.parametrize("solved", [(0, 0), (1, 1)])
def test_seeds_that_gain_nothing_are_as_sure_of_it_as_one_of_them(tmp_path: Path, solved: tuple[int, int]) -> None:
    for seed in (1, 2):
        write_run(tmp_path / str(seed), seed=seed, solved=[solved] * 20)
    table = held_out_table(measurements(read_runs([tmp_path]), Evaluations(), DEFAULTS))
    (alone,) = paired_intervals(torch.zeros(20, 1), torch.zeros(20, 1))
    assert table.rows[0].cells[1].text == "2"
    assert table.rows[0].cells[-1].interval == pytest.approx((100 * alone.low, 100 * alone.high), abs=0.5)


def test_without_scores_of_each_problem_a_mean_over_seeds_has_no_interval(tmp_path: Path) -> None:
    seeds = [
        replace(evaluation(1, 2, algo="apo", seed=s, weights=str(s), entropy=float(s)), by_problem={}) for s in (1, 2)
    ]
    table = health_table(found(tmp_path, *seeds))
    row, *others = table.rows
    assert all(other.section.startswith("Published") for other in others)
    assert [cell.text for cell in row.cells[:3]] == ["APO", "2", "100.00"]
    entropy = row.cells[5]
    assert (entropy.text, entropy.interval) == ("1.500", None)


def test_a_lucky_seed_is_lucky_on_all_benchmarks_of_an_average(tmp_path: Path) -> None:
    """Every problem of both benchmarks scores the seed's own 0.2, 0.3 or 0.4: the average is as unsure as either."""
    results = [
        evaluation(*[c] * 20, algo="apo", seed=s, weights=str(s), num_samples=10, benchmark=name)
        for name in ("aime2024", "math500")
        for s, c in ((1, 2), (2, 3), (3, 4))
    ]
    (item,) = series(found(tmp_path, *results))
    mean = average(item, item.by_benchmark, "pass@1")
    assert mean is not None
    # V_S = 0.01/3, t with two degrees of freedom is 4.303.
    assert (mean.value, mean.high) == pytest.approx((0.3, 0.3 + 4.3027 * math.sqrt(0.01 / 3)), abs=1e-4)
    uneven = series(found(tmp_path, *results[:-1], replace(results[-1], model=results[0].model)))
    assert all(part.head.block == "tiny" for part in uneven)


def test_an_average_over_benchmarks_with_other_seeds_has_no_interval(tmp_path: Path) -> None:
    results = [
        evaluation(1, 2, 3, algo="apo", seed=s, weights=str(s), benchmark=name)
        for name, seeds in (("aime2024", (1, 2)), ("math500", (2, 3)))
        for s in seeds
    ]
    (item,) = series(found(tmp_path, *results))
    mean = average(item, item.by_benchmark, "pass@1")
    assert mean is not None
    assert mean.value == pytest.approx(0.5)
    assert math.isnan(mean.low)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["0.6", "1"]), st.sampled_from("abc")), max_size=6))
def test_one_more_measurement_leaves_those_measured_otherwise_alone(drawn: list[tuple[int, str, str]]) -> None:
    """Whatever seeds, temperatures and weights there are: a second policy at another temperature changes no number."""
    items = [
        measured("APO", (0.1 * s, 0.5), seed=str(s), weights=f"{w}{s}", sampling={"temperature": t}, solved=(s % 3, 1))
        for s, t, w in drawn
    ]
    other = measured("APO", (0.9, 0.95), seed="9", weights="z", sampling={"temperature": "2"}, solved=(2, 2))
    numbers = [
        sorted(
            (item.head.name, measured_.sampling["temperature"], measured_.metrics["pass@1"].value)
            for item in series(resolved(given))
            for measured_ in item.by_benchmark.values()
            if measured_.sampling["temperature"] != "2"
        )
        for given in (items, [*items, other])
    ]
    assert numbers[0] == numbers[1]


def test_nothing_but_training_seeds_can_be_averaged_even_by_hand() -> None:
    for one, two in (
        (measured("APO", seed="1"), measured("APO", seed="1")),
        (measured("APO"), measured("APO", seed="2")),
        (measured("APO", seed="1"), measured("APO", seed="2", sampling={"temperature": "2"})),
    ):
        with pytest.raises(ConfigError, match="not training seeds measured alike"):
            mean_over_seeds([one, two])


def test_what_an_edited_yaml_changed_is_a_setting_though_nobody_typed_it(tmp_path: Path) -> None:
    for seed, warmup in ((1, 5), (2, 0)):
        scheduler = {"scheduler": {"num_warmup_steps": warmup}, "callbacks": {"quiet": seed}}
        write_run(tmp_path / str(seed), seed=seed, config=scheduler)
    items = measurements(read_runs([tmp_path]), Evaluations(), {"apo": {"scheduler.num_warmup_steps": "5"}})
    assert [item.settings for item in items if item.method == "APO"] == [{}, {"scheduler.num_warmup_steps": "0"}]


def test_held_out_pass_at_k_stands_in_the_table_with_its_interval(tmp_path: Path) -> None:
    for seed, after in ((1, 32), (2, 48)):
        write_run(tmp_path / str(seed), seed=seed, num_samples=64, solved=[(16, after), (0, 16)])
    items = measurements(read_runs([tmp_path]), Evaluations(), DEFAULTS)
    table = held_out_table(items)
    # Before: 16 of 128. After: 48 and 64 of 128. pass@64: one of two problems, then both.
    assert [cell.text for cell in table.rows[0].cells] == [
        "APO", "2", "arithmetic", "64", "12.50", "43.75", "50.00", "100.00", "+31.25",
    ]  # fmt: skip
    assert all(cell.interval for cell in table.rows[0].cells[4:])
