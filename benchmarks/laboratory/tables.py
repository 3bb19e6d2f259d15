"""The tables of the page across editions; none was registered."""

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd

from apo_lab.reporting.comparisons import answered
from apo_lab.reporting.levels import EXPLORED
from apo_lab.reporting.reading import Frame, arm_name
from apo_lab.statistics.verdicts import MIN_SEEDS
from apo_lightning.evaluation.records import Estimate
from apo_report.records import Cell, Table, TableRow, left, right, row_of
from apo_report.statistics.multiplicity import holm
from apo_report.tables.cells import EMPTY, p_cell, points_cell
from benchmarks.laboratory.rows import (
    LEVEL,
    at,
    best_single,
    curves,
    edition,
    interval,
    mean_cell,
    p_value,
    passages,
    reached,
)

FOUR = tuple(f"locks_{letter}" for letter in "abcd")
SIX = (*FOUR, "locks_e", "locks_f")
SOURCES = {
    "branches": "locks_a to d of branches (150 steps), e and f of cliff (300 steps)",
    "longer": "locks_a to d of longer (300 steps), e and f of cliff (300 steps)",
}
SHARES = (0.80, 0.85, 0.90, 0.95)
"""pass@1, as shares of that of the best single kind of answer."""
EIGHT = tuple(f"locks_{letter}" for letter in "abcdefgh")
OF_EIGHT = (
    *(("grpo", after) for after in ("grpo_dropped_more", "apo_gate_only", "apo", "grpo_kl", "inverse_frequency")),
    ("apo_gate_only", "apo"),
)
"""Pairs of arms of `decoding`: before, after."""
EARLIER = (0.60, 0.70, *SHARES)
CONTROLS = {
    "apo_itself": "λ = 1.05, β = 0.2, K = 8",
    "apo_gate_only": "anchors decide which errors are pushed, and have no gradient",
    "apo_random_anchors": "anchors drawn at random",
    "apo_k12": "K = 12",
    "apo_naive": "the sampled token may be an anchor",
    "apo_uniform_weights": "anchors weigh alike",
}
OTHER_LEVELS = (0.30, 0.315, 0.33, LEVEL, 0.355)
TUNED = {"full": ("grpo", "clip_higher", "grpo_kl", "apo"), "branches": ("max_rl", "inverse_frequency")}
SPACED = ("grpo", "apo", "grpo_kl")
EVERY = (4, 6, 10)
"""Steps from one evaluation point to the next; full has 2, branches 5."""


def tables() -> list[Table]:
    """All of the page."""
    of_locks = [controls(), controls_by_level(), shares(), eight(), kept(), instances()]
    return [*of_locks, areas(), editions(), tuning(), spacing()]


def _control_arms() -> Iterator[tuple[str, str, str]]:
    """Stage, arm and what is changed; APO itself first."""
    yield from (("controls", name, changed) for name, changed in CONTROLS.items())
    stage = edition("full").protocol.stage("factorial")
    yield from (("factorial", name, "GRPO" if name == "lambda_1.0_beta_0" else "K = 8") for name in stage.arms)


def _less_apo(stage: str, name: str, level: float) -> np.ndarray:
    apo, own = (passages("full", arm, "locks_a", level, of) for of, arm in (("controls", "apo_itself"), (stage, name)))
    return (own - apo).dropna().to_numpy(float)


def controls() -> Table:
    rows = []
    for stage, name, changed in _control_arms():
        step, value, nats = (
            passages("full", name, "locks_a", LEVEL, stage, metric)
            for metric in ("step", "pass@64", "strategy_entropy")
        )
        less = _less_apo(stage, name, LEVEL)
        is_apo = name == "apo_itself"
        rows.append(
            row_of(
                arm_name(name),
                changed,
                reached(value),
                Cell(f"{step.mean():.0f} ± {step.sem():.0f}", float(step.mean())),
                Cell(f"{100 * value.mean():.1f} ± {100 * value.sem():.1f}", float(100 * value.mean())),
                EMPTY if is_apo else points_cell(interval(less)),
                EMPTY if is_apo else p_cell(p_value(less)),
                Cell(f"{nats.mean():.2f}", float(nats.mean())),
            )
        )
    return Table(
        name="across_controls",
        title=f"{EXPLORED}: APO with one part changed, where pass@1 first reaches 34.5 % (locks_a, edition full)",
        columns=(
            *left("Arm", "Settings"),
            *right("Runs", "Step", "pass@64 [%]", "Minus APO [points]", "p", "Entropy of strategies [nats]"),
        ),
        rows=tuple(rows),
        notes=(
            "Ten seeds, the same in all arms. ± standard error over the runs that reach 34.5 %. Minus APO: the mean of "
            "the differences by seed and its 95 % t-interval; p without a correction. One instance, and these seeds: "
            "nothing here covers other instances or problems. λ = 1 with β = 0 is GRPO.",
        ),
    )


def controls_by_level() -> Table:
    rows = []
    for stage, name, _ in itertools.islice(_control_arms(), 1, None):
        found = (_less_apo(stage, name, level) for level in OTHER_LEVELS)
        rows.append(row_of(arm_name(name), *(_by_seed(each) for each in found)))
    return Table(
        name="across_controls_by_level",
        title=f"{EXPLORED}: the same arms minus APO at other levels [points of pass@64] (locks_a, edition full)",
        columns=(*left("Arm"), *right(*(f"{100 * level:.3g}" for level in OTHER_LEVELS), group="pass@1 of")),
        rows=tuple(rows),
        notes=("Differences by seed, 95 % t-interval; in round brackets how many seeds reach the level in both arms.",),
    )


def _by_seed(less: np.ndarray) -> Cell:
    if len(less) < MIN_SEEDS:
        return EMPTY
    found = points_cell(interval(less))
    return Cell(f"{found.text} {found.interval_text} ({len(less)})", found.value)


def _in_instance(source: str, method: str, world: str, share: float) -> pd.Series:
    name = source if world in FOUR else "cliff"
    return passages(name, method, world, share * best_single(name, world))


def shares() -> Table:
    """GRPO's and other arms' difference at equal shares of the best single kind, with the instance as unit."""
    rows: list[TableRow] = []
    for (source, section), share in itertools.product(SOURCES.items(), SHARES):
        for method in ("apo", "grpo_kl"):
            found = [
                (_in_instance(source, method, world, share), _in_instance(source, "grpo", world, share))
                for world in SIX
            ]
            means = np.array([after.mean() - before.mean() for after, before in found])
            cells = (
                Cell(f"{100 * mean:+.1f} ({after.notna().sum()}, {before.notna().sum()})", 100 * mean)
                for mean, (after, before) in zip(means, found, strict=True)
            )
            label = f"{arm_name(method)} − GRPO at {share:.2f}"
            rows.append(row_of(label, *cells, _tenths(means), p_cell(p_value(means)), section=section))
    return Table(
        name="across_shares",
        title=f"{EXPLORED}: differences at equal shares of the best single kind's pass@1 [points of pass@64]",
        columns=(*left("Difference"), *right(*SIX, "Mean of instances", "p")),
        rows=tuple(rows),
        notes=(
            "Where pass@1 first reaches so much of the pass@1 of always giving the best single kind of answer. In "
            "round brackets how many runs of both arms do, of three in locks_a to d and of five in e and f. Mean: 95 % "
            "t-interval with the instance as unit, 5 degrees of freedom; p without a correction. The share 0.95 was "
            "registered for e and f alone.",
        ),
    )


def eight() -> Table:
    """Differences along the way to L* in the eight instances of `decoding`, with the instance as unit."""
    rows: list[TableRow] = []
    for before, after in OF_EIGHT:
        cells = []
        for share in EARLIER:
            levels = {world: share * best_single("decoding", world) for world in EIGHT}
            arms = [[passages("decoding", name, *each).mean() for each in levels.items()] for name in (before, after)]
            points = np.subtract(arms[1], arms[0])
            found, ends = points_cell(interval(points)), [f"{100 * end:+.1f}" for end in (points.min(), points.max())]
            cells.append(Cell(f"{found.text} {found.interval_text} ({' to '.join(ends)})", found.value))
        rows.append(row_of(f"{arm_name(after)} − {arm_name(before)}", *cells))
    return Table(
        name="across_eight",
        title=f"{EXPLORED}: eight instances of decoding, along the way [points of pass@64]",
        columns=(*left("Difference"), *right(*map("{:.2f}".format, EARLIER), group="pass@1 ÷ best single kind")),
        rows=tuple(rows),
        notes=(
            "Means of eight instances, three runs of an arm in each, where pass@1 first reaches so much of the pass@1 "
            "of always giving the best single kind of answer; 95 % t-interval with the instance as unit; in round "
            "brackets the lowest and the highest instance. 0.95 was registered, on the logit scale. A run of inverse "
            "frequency does not reach 0.90.",
        ),
    )


def kept() -> Table:
    rows = []
    singles = [100 * best_single("branches" if world in FOUR else "cliff", world) for world in SIX]
    best = [Cell(f"{one:.1f}", one) for one in singles]
    for (source, section), share in itertools.product(SOURCES.items(), SHARES):
        if share == SHARES[0]:
            rows.append(row_of("pass@1 of the best single kind", *best, EMPTY, section=section))
        for method in ("grpo", "apo", "grpo_kl"):
            found = [_in_instance(source, method, world, share) for world in SIX]
            mean = float(np.mean([each.mean() for each in found]))
            cells = [Cell(f"{100 * each.mean():.1f}", float(100 * each.mean())) for each in found]
            label = f"{arm_name(method)} at {share:.2f}"
            rows.append(row_of(label, *cells, Cell(f"{100 * mean:.1f}", 100 * mean), section=section))
    return Table(
        name="across_kept",
        title=f"{EXPLORED}: pass@64 at equal shares of the best single kind's pass@1 [%]",
        columns=(*left("Arm"), *right(*SIX, "Mean of instances")),
        rows=tuple(rows),
        notes=("Means over the runs that get there; how many do is in the table above.",),
    )


def instances() -> Table:
    """The registered question of branches on locks with the instance as unit, on the scale of its verdict."""
    (question,) = [each for each in answered(edition("branches")) if each.question.key == "best_locks"]
    stage = edition("branches").protocol.stage("locks")
    found = []
    for each in question.comparisons:
        arms = [
            edition("branches").arm(stage, FOUR, name).scores("passage").tables for name in (each.before, each.after)
        ]
        logits = [(arms[1][world].mean() - arms[0][world].mean()).item() for world in FOUR]
        is_whole = all(len(table) >= MIN_SEEDS for arm in arms for table in arm.values())
        found.append((each, logits, p_value(logits) if is_whole else 1.0))
    adjusted = holm([p for *_, p in found])
    rows = []
    for (each, _, p), own in zip(found, adjusted, strict=True):
        pair = [[passages("branches", name, world) for world in FOUR] for name in (each.before, each.after)]
        points = np.array([after.mean() - before.mean() for before, after in zip(*pair, strict=True)])
        cells = (Cell(f"{100 * value:+.1f}", 100 * value) for value in points)
        registered = p_cell(each.verdict.adjusted_p_value) if each.verdict else EMPTY
        is_whole = p < 1
        rows.append(
            row_of(
                each.label,
                *cells,
                _tenths(points),
                *((p_cell(p), p_cell(own)) if is_whole else (EMPTY, EMPTY)),
                registered if is_whole else EMPTY,
            )
        )
    return Table(
        name="across_instances",
        title=f"{EXPLORED}: pass@64 at 34.5 % with the instance as unit [points] (locks, edition branches)",
        columns=(*left("Comparison"), *right(*FOUR, "Mean", "p", "Adjusted p", "Registered adjusted p")),
        rows=tuple(rows),
        notes=(
            "Means of runs, as they are, and their mean with a 95 % t-interval over the four instances (3 degrees of "
            "freedom). p: t-test over the instances of the differences on the logit scale, as the registered verdict "
            "takes them; adjusted by Holm for seven. Registered: over seeds, problems and instances, the larger of two "
            "variances. A comparison with fewer than three runs in an instance has p = 1.",
        ),
    )


def areas() -> Table:
    """What nobody registered of branches: the area up to 34.5 %."""
    runs = edition("branches").runs
    runs = runs[(runs["stage"] == "locks") & runs["world"].isin(FOUR)]
    means = runs.groupby(["method", "world"])["area"].mean()
    rows = []
    for method in edition("branches").protocol.stage("locks").arms.keys() | edition("branches").protocol.tuned.keys():
        if method != "grpo":
            points = np.array([means[method, world] - means["grpo", world] for world in FOUR])
            cells = (Cell(f"{100 * value:+.2f}", 100 * value) for value in points)
            rows.append(
                row_of(f"{arm_name(method)} − GRPO", *cells, points_cell(interval(points)), p_cell(p_value(points)))
            )
    return Table(
        name="across_areas",
        title=f"{EXPLORED}: area up to a pass@1 of 34.5 % minus GRPO's [points of pass@64] (locks, edition branches)",
        columns=(*left("Difference"), *right(*FOUR, "Mean", "p")),
        rows=tuple(sorted(rows, key=lambda row: -(row.cells[-2].value or 0))),
        notes=(
            "Area: pass@64 at first passage, mean over the levels from the base model's pass@1 on, 0 where a run does "
            "not reach a level. Means of three runs in each instance; 95 % t-interval and p over the four instances, "
            "without a correction. The edition branches registered pass@64 at 34.5 % alone.",
        ),
    )


def editions() -> Table:
    """The same instances in four editions, and pooled."""
    rows = []
    for world in FOUR:
        for name in ("full", "longer", "branches", "recipe"):
            arms = {method: passages(name, method, world) for method in ("grpo", "apo", "grpo_kl")}
            differences = (_difference(arms[method], arms["grpo"]) for method in ("apo", "grpo_kl"))
            rows.append(row_of(name, mean_cell(arms["grpo"]), *differences, section=world))
        grpo, kl = (_pooled(method, world, ("full", "branches", "recipe")) for method in ("grpo", "grpo_kl"))
        apo = _pooled("apo", world, ("full", "branches"))
        errors = ((_difference(arm, grpo, has_error=True)) for arm in (apo, kl))
        rows.append(row_of("full, branches and recipe", mean_cell(grpo), *errors, section=world))
    return Table(
        name="across_editions",
        title=f"{EXPLORED}: the same instances of locks in four editions, where pass@1 first reaches 34.5 %",
        columns=(*left("Edition"), *right("GRPO [%]", "APO − GRPO [points]", "GRPO-KL − GRPO [points]")),
        rows=tuple(rows),
        notes=(
            "± standard error over runs; in brackets how many runs reach the level, of both arms. Longer has the seeds "
            "of full, on another processor, and is not pooled with it. Recipe has no APO.",
        ),
    )


def _pooled(method: str, world: str, names: tuple[str, ...]) -> Frame:
    return pd.concat([passages(name, method, world) for name in names])


def _difference(after: pd.Series, before: pd.Series, *, has_error: bool = False) -> Cell:
    after, before = after.dropna(), before.dropna()
    if not len(after):
        return EMPTY
    points = 100 * (after.mean() - before.mean())
    error = f" ± {100 * np.hypot(after.sem(), before.sem()):.1f}" if has_error else ""
    return Cell(f"{points:+.1f}{error} ({len(after)}, {len(before)})", float(points))


def tuning() -> Table:
    """Every configuration of some methods on locks_a at 34.5 %, which no edition tuned for."""
    rows = []
    for name, methods in TUNED.items():
        for method in methods:
            runs = [(variant, at(points, LEVEL)) for variant, _, points in curves(name, method, "locks_a", "tuning")]
            for variant in sorted({variant for variant, _ in runs}, key=_rate):
                found = pd.Series([value for own, value in runs if own == variant])
                texts = ", ".join(f"{100 * value:.1f}" for value in sorted(found.dropna()))
                value = Cell(texts, float(100 * found.mean())) if texts else EMPTY
                rows.append(row_of(variant, reached(found), value, section=f"{arm_name(method)}, {name}"))
    return Table(
        name="across_tuning",
        title=f"{EXPLORED}: tuning runs where pass@1 first reaches 34.5 % (locks_a)",
        columns=(*left("Settings"), *right("Runs that reach it", "pass@64 of each [%]")),
        rows=tuple(rows),
        notes=(
            "Two runs of each setting, 100 steps. The settings of all editions were chosen by the area, for which fast "
            "rates win since levels that are missed count 0.",
        ),
    )


def _rate(variant: str) -> tuple[float, str]:
    """Settings by their learning rate, the first of them."""
    return float(variant.split()[0].removeprefix("lr=")), variant


def spacing() -> Table:
    """How far wider evaluation points move pass@64 at 34.5 %: full has one every 2 steps, branches every 5."""
    rows = []
    for method in SPACED:
        runs = [points for world in FOUR for *_, points in curves("full", method, world)]
        exact = np.array([at(points, LEVEL) for points in runs])
        cells = []
        for every in EVERY:
            moved = 100 * (np.array([_at_every(points, every) for points in runs]) - exact)
            cells.append(Cell(f"{np.nanmean(moved):+.2f}", float(np.nanmean(moved))))
        rows.append(row_of(arm_name(method), *cells))
    return Table(
        name="across_spacing",
        title=f"{EXPLORED}: change of pass@64 at 34.5 % with fewer evaluation points [points] (locks, edition full)",
        columns=(*left("Arm"), *right(*(f"{every} steps" for every in EVERY), group="One every")),
        rows=tuple(rows),
        notes=("Against one every 2 steps, mean over all places of the points that are left, and over the runs.",),
    )


def _at_every(points: pd.DataFrame, every: int) -> float:
    """`at` with the base model and one evaluation point every so many steps: the mean over where they can lie."""
    steps = points["step"]
    left = [points[(steps == 0) | (steps % every == place)] for place in range(0, every, 2)]
    return float(np.mean([at(each, LEVEL) for each in left]))


def _tenths(values: np.ndarray) -> Cell:
    """Points with one decimal: `+22.7 [14.9, 30.5]`."""
    found: Estimate = interval(values)
    ends = (100 * found.low, 100 * found.high)
    return Cell(f"{100 * found.value:+.1f}", 100 * found.value, ends, f"[{ends[0]:+.1f}, {ends[1]:+.1f}]")
