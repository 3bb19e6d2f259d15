"""What figures draw, read back from the figures themselves; every method looks like itself, in colour and in grey."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from apo_report.figures.canvas import NamedFigure, inline_svg, save
from apo_report.figures.evaluations import (
    pareto_figure,
    pareto_points,
    pass_at_k_figure,
    sensitivity_figure,
    sensitivity_points,
)
from apo_report.figures.report import curve_panels, curves_figure, method_curves, report_figures
from apo_report.names import METHODS
from apo_report.published import as_measurements, published
from apo_report.records import bare
from apo_report.runs import runs_by_method
from apo_report.style import KNOWN, styles_of
from report_records import make_measurement, make_run

SMALL = {"num_problems": 8, "num_samples": 4}
KEY = "algo.loss.pull_coef"
DEFAULTS = {"apo": {KEY: "0.1"}}


def texts(figure):
    """Everything that is written anywhere in a figure."""
    found = {text.get_text() for axes in figure.axes for text in axes.texts}
    found |= {axes.get_title(loc="left") for axes in figure.axes}
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return found | {text.get_text() for legend in legends for text in legend.get_texts()}


def colors(axes):
    return {line.get_color() for line in axes.lines}


def measured(algos=(None, "grpo", "apo"), benchmarks=("aime2024",), **kwargs):
    return [make_measurement(algo, benchmark=name, **{**SMALL, **kwargs}) for algo in algos for name in benchmarks]


def all_styles(measurements):
    return styles_of(item.name for item in measurements)


def test_a_figure_has_the_same_bytes_twice_in_every_format(tmp_path):
    items = measured()

    def draw():
        return NamedFigure("pareto", "", "", pareto_figure(items, all_styles(items)))

    first, second = save(draw(), tmp_path / "first"), save(draw(), tmp_path / "second")
    assert [path.name for path in first] == ["pareto.pdf", "pareto.svg", "pareto.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"CreationDate" not in first[0].read_bytes()
    assert b"<dc:date>" not in first[1].read_bytes()


def test_an_inline_svg_keeps_its_words_as_text_and_its_ids_carry_its_name_and_find_their_targets():
    items = measured()
    svg = inline_svg(NamedFigure("pareto", "", "", pareto_figure(items, all_styles(items))))
    assert ">GRPO</text>" in svg
    assert re.search(r"\d\.\d{3}", svg) is None, "coordinates have two decimals"
    assert "'DejaVu Sans', Verdana, sans-serif" in svg
    ids = re.findall(r'\bid="([^"]*)"', svg)
    assert svg.startswith("<svg")
    assert all(identifier.startswith("pareto-") for identifier in ids)
    references = {one or other for one, other in re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg)}
    assert set() < references <= set(ids)


def test_seeds_are_averaged_where_all_of_them_have_a_step():
    def run(seed, steps, values):
        return replace(make_run("apo", seed=seed), metrics=pd.DataFrame({"train/entropy": values}, index=steps))

    runs = [run(1, (1.0, 2.0, 3.0), (0.2, 0.4, 0.9)), run(2, (1.0, 2.0), (0.4, 0.8))]
    (curve,) = method_curves({"APO": runs}, "train/entropy")
    # A window of one step: (0.2 + 0.4)/2 and (0.4 + 0.8)/2; step 3 is the first seed's alone.
    assert curve.smoothed.index.tolist() == [1.0, 2.0]
    assert curve.smoothed.mean(axis=1).tolist() == pytest.approx([0.3, 0.6])
    assert curve.smoothed.min(axis=1).tolist() == pytest.approx([0.2, 0.4])
    assert curve.logged[0].index.tolist() == [1.0, 2.0, 3.0]
    (long,) = method_curves({"APO": [run(1, range(40), range(1, 41))]}, "train/entropy")
    # 40 values, windows of 2: {1}, {1, 2}, {2, 3}.
    assert long.smoothed[:3].squeeze().tolist() == [1.0, 1.5, 2.5]


def swept(pull_coef, algo="apo", **kwargs):
    return replace(make_run(algo, **kwargs), config={KEY: pull_coef})


def test_every_setting_of_a_sweep_has_a_line_named_as_its_evaluations_are():
    def methods(*runs):
        found = runs_by_method([*runs, make_run("grpo")], DEFAULTS)
        return [(method, len(group)) for method, group in found["Qwen2.5-Math-7B"].items()]

    names = {value: make_measurement("apo", settings={KEY: value}, **SMALL).name for value in ("2", "10")}
    # The defaults first, then by value: 2 before 10.
    lines = [("GRPO", 1), ("APO", 1), (names["2"], 1), (names["10"], 1)]
    assert methods(swept("10"), swept("0.1"), swept("2")) == lines
    assert methods(swept("10"), swept("2")) == [line for line in lines if line[0] != "APO"]
    # The same weights count once.
    first = swept("0.1")
    copies = [replace(first, summary={"weights_sha256": w * 64}, folder=first.folder / w) for w in "aab"]
    assert methods(*copies) == [("GRPO", 1), ("APO", 2)]


@pytest.mark.parametrize(
    ("num_settings", "methods", "names"),
    [
        (7, ("apo", "grpo"), ["training"]),
        (8, ("apo", "grpo"), ["training", "training_apo"]),
        (8, ("apo",), ["training"]),
        (20, ("apo",), ["training"]),
        (20, ("apo", "grpo"), ["training", "training_apo"]),
        (20, ("apo", "grpo", "nsr"), ["training", "training_apo"]),
    ],
)
def test_a_figure_names_eight_settings_at_most_draws_all_and_says_so(num_settings, methods, names):
    options = {"keys": ["train/reward"], "num_steps": 20}
    runs = [swept(f"{0.1 * place:g}", **options) for place in range(1, num_settings + 1)]
    figures = report_figures([*runs, *(make_run(algo, **options) for algo in methods if algo != "apo")], [], DEFAULTS)
    assert [figure.name for figure in figures] == names
    last = figures[-1]
    labels = {text.get_text() for text in last.figure.legends[0].get_texts()}
    is_alone = len(names) == 2 or len(methods) == 1
    num_lines = num_settings if is_alone else num_settings + len(methods) - 1
    assert len(labels) == min(num_lines, 9)
    assert {"APO", f"APO (β = {0.1 * num_settings:g})"} < labels, "the default and the largest value"
    assert ("other settings" in labels) == (num_settings > 8)
    assert (f"8 of {num_settings} settings are named" in last.caption) == (num_settings > 8)
    # Each run's own line, a method's line, and no more.
    assert len(last.figure.axes[0].lines) == 2 * num_lines
    if len(names) == 2:
        assert "More than 8 settings" in figures[0].caption
        assert {text.get_text() for text in figures[0].figure.legends[0].get_texts()} == {METHODS[a] for a in methods}


def test_a_legend_of_long_names_stays_inside_its_figure():
    runs = [swept(f"{place / 1000:g}", keys=["train/reward"], num_steps=20) for place in range(1, 9)]
    options = [{"optimizer.learning_rate": f"{n}e-06"} for n in range(4)]
    longer = [{f"parts.{name}.a_long_name": str(n) for name in "abc"} for n in range(4)]
    pages = [report_figures([], [make_measurement("apo", settings=s, **SMALL) for s in o]) for o in (options, longer)]
    for figure in (*report_figures(runs, [], DEFAULTS), *pages[0][:2], *pages[1][:2]):
        (legend,) = figure.figure.legends
        assert legend.get_window_extent().width <= figure.figure.bbox.width
        assert figure.figure.axes[0].get_window_extent().height > 80


def test_an_svg_does_not_round_its_tick_labels():
    run = replace(make_run("apo", keys=()), metrics=pd.DataFrame({"train/reward": (0.970, 0.980)}, index=[1, 2]))
    (figure,) = report_figures([run], [])
    assert {">0.970</text>", ">0.972</text>", ">0.974</text>"} <= set(
        re.findall(r">0\.[^<]*</text>", inline_svg(figure))
    )


def test_pareto_points_average_over_the_benchmarks_that_all_methods_have():
    items = measured(("grpo", "apo"), ("aime2024", "amc2023"))[:3]
    points = {point.method: point for point in pareto_points(items)}
    first = items[0].metrics
    # APO has AIME 24 alone here, so that GRPO's AMC 23 is not in its mean.
    assert points["GRPO"].pass_at_1.value == pytest.approx(first["pass@1"].value)
    assert points["GRPO"].pass_at_k.value == pytest.approx(first["pass@4"].value)


def test_published_pareto_points_are_the_papers_averages():
    points = {(p.block, p.method): p for p in pareto_points(as_measurements(published("main_results")))}
    # The paper prints 27.70 and 76.95 for Qwen2.5-Math-7B: (13.66 + 7.02 + 45.62 + 57.70 + 14.50)/5 = 27.70.
    base = points["Qwen2.5-Math-7B", "Base"]
    assert 100 * base.pass_at_1.value == pytest.approx(27.70)
    assert 100 * base.pass_at_k.value == pytest.approx((73.33 + 56.67 + 100 + 89.6 + 65.15) / 5)
    assert math.isnan(base.pass_at_1.low)


@pytest.mark.parametrize(
    ("many", "arrows"),
    [({"Base": 0.9, "GRPO": 0.7, "APO": 0.8}, {"diversity collapse", "recovery"}), ({"GRPO": 0.8, "APO": 0.7}, set())],
)
def test_arrows_are_drawn_where_there_is_a_collapse_or_a_recovery(many, arrows):
    grpo = replace(make_measurement("grpo", **SMALL), pass_at_k=())
    ones = {"Base": 0.1, "GRPO": 0.3, "APO": 0.4}
    items = [
        replace(grpo, method=method, metrics={"pass@1": bare(ones[method]), "pass@4": bare(value)})
        for method, value in many.items()
    ]
    (figure,) = report_figures([], items)
    assert texts(figure.figure) & {"diversity collapse", "recovery"} == arrows
    assert ("Dashed arrow" in figure.caption, "Solid arrow" in figure.caption) == (bool(arrows), bool(arrows))


def test_published_points_are_hollow_and_drawn_for_measured_models_alone():
    items, paper = measured(), as_measurements(published("main_results"))
    figure = pareto_figure(items, all_styles([*items, *paper]), published=paper)
    assert {text for text in texts(figure) if "7B" in text} == {"Qwen2.5-Math-7B"}
    points = [bar.lines[0] for bar in figure.axes[0].containers]
    assert [line.get_markerfacecolor() for line in points].count("white") == 6
    assert {"Base", "GRPO", "APO", "measured", "published"} <= texts(figure)


def test_a_pass_at_k_curve_is_drawn_in_per_cent_over_every_k():
    items = measured(("apo",), num_samples=8)
    axes = pass_at_k_figure(items, all_styles(items)).axes[0]
    assert axes.lines[0].get_xdata().tolist() == list(range(1, 9))
    expected = [100 * estimate.value for estimate in items[0].pass_at_k]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx(expected)
    assert axes.get_xscale() == "log"


def sweep():
    changed = [make_measurement("apo", settings={KEY: v}, shift=s, **SMALL) for v, s in (("0.02", -0.1), ("0", -0.2))]
    return [make_measurement("apo", **SMALL), *changed]


def test_a_sensitivity_panel_holds_the_default_among_the_values_in_order():
    points = sensitivity_points(sweep(), "Qwen2.5-Math-7B", "APO", DEFAULTS["apo"])[KEY]
    assert list(points) == ["0", "0.02", "0.1"]
    values = [estimate.value for estimate in points.values()]
    assert np.diff(values).tolist() == pytest.approx([0.1, 0.1])


def test_the_default_is_a_star_and_published_values_are_hollow():
    paper = as_measurements(published("sensitivity"))
    ours, theirs = (sensitivity_points(items, "Qwen2.5-Math-7B", "APO", DEFAULTS["apo"]) for items in (sweep(), paper))
    assert list(theirs[KEY]) == ["0", "0.01", "0.02", "0.05", "0.1"]
    axes = sensitivity_figure(ours, theirs, DEFAULTS["apo"]).axes[0]
    stars = [line for line in axes.lines if line.get_marker() == "*"]
    assert {line.get_markerfacecolor() for line in stars} == {"white", KNOWN["APO"].color}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.01", "0.02", "0.05", "0.1"]


def watched(algo, first):
    """A run whose diagnostics were logged at two steps."""
    values = {
        "squeeze/index_difference": (first, 0.2),
        "alarm/sums/num_lost": (1.0, 2.0),
        "reach/correct_outside": (first, 0.5),
    }
    return replace(make_run(algo, keys=()), metrics=pd.DataFrame(values, index=[5, 10]))


def test_a_panel_of_a_diagnostic_has_a_line_at_what_it_is_compared_with():
    (runs,) = runs_by_method([watched("apo", 0.1), watched("grpo", 0.3)]).values()
    found = {panel.title: panel.reference for panel in curve_panels(runs, "monitors")}
    assert found == {
        "Squeezing index, error − control": 0.0,
        "Correct, outside T$_K$": pytest.approx(0.2),
        "Problems lost, sums": 0.0,
    }
    figure = curves_figure(curve_panels(runs, "monitors"), styles_of(runs))
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [line.get_ydata() for line in dotted] == [[0.0, 0.0]]


def test_a_report_has_each_figure_once_and_none_without_data():
    items = [*measured((None, "grpo")), *sweep()]
    figures = report_figures([make_run("apo"), make_run("grpo")], items, DEFAULTS)
    names = [figure.name for figure in figures]
    assert names == ["pareto", "pass_at_k", "sensitivity", "entropy", "training"]
    assert report_figures([], []) == report_figures([make_run("apo", keys=())], []) == []
    assert [figure.name for figure in report_figures([watched("apo", 0.1)], [])] == ["monitors"]


PAPERS = ["Base", "GRPO", "NSR", "GRPO-KL", "GRPO-KL (error-only)", "APO"]
names = st.lists(st.text(alphabet="abcxyz_0", min_size=1, max_size=6), max_size=18)  # so many looks are free


def lightness(color):
    """CIE L* of `#rrggbb` in sRGB under D65, from its definition."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16


def test_every_algorithm_of_the_project_has_a_style_and_no_two_share_marker_and_dash():
    assert set(KNOWN) == set(METHODS.values())
    looks = [(style.marker, style.dash) for style in KNOWN.values()]
    assert len(set(looks)) == len(looks)


def test_the_papers_methods_have_six_colors_and_markers_and_stay_apart_in_a_grey_print():
    styles = [KNOWN[name] for name in PAPERS]
    # Points of a scatter plot have no dash: there the marker alone must do.
    assert len({style.marker for style in styles}) == len({style.color for style in styles}) == len(PAPERS)
    ordered = sorted(lightness(style.color) for style in styles)
    assert min(high - low for low, high in itertools.pairwise(ordered)) >= 5
    # The two that a reader compares are the darkest, and dark enough for lines on white.
    darkest = sorted(PAPERS, key=lambda name: lightness(KNOWN[name].color))[:2]
    assert darkest == ["APO", "GRPO"]


@given(names)
@example([f"m{i}" for i in range(18)])
def test_unknown_methods_get_looks_of_their_own_whatever_the_order(methods):
    styles = styles_of([*methods, "APO", "GRPO"])
    assert styles == styles_of(["GRPO", *reversed(methods), "APO", "APO"])
    looks = [(style.marker, style.dash) for style in styles.values()]
    assert len(set(looks)) == len(looks)
    assert styles["APO"].color == KNOWN["APO"].color
    assert max(styles.values(), key=lambda style: style.rank).label == "APO"
