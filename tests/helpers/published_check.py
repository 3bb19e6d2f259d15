"""What is wrong with the paper's numbers, recomputed: averages from their cells, shares from counts of samples."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from apo_report.published import AVERAGE, NUM_SAMPLES, PublishedCell, published

NUM_PROBLEMS = {"aime2024": 30, "aime2025": 30, "amc2023": 40, "math500": 500, "minerva_math": 272}
"""P, the number of problems, of each benchmark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inconsistency:
    """One way in which one published cell cannot be right."""

    cell: PublishedCell
    kind: str
    """A key of `published.FAULTS`."""
    expected: str
    """The value that the cell should have, as far as can be told: the recomputed mean, the nearest shares."""


def inconsistencies() -> tuple[Inconsistency, ...]:
    """Every published cell that contradicts others or arithmetic, recomputed in exact fractions.

    - A mean must follow from its cells, each of which may be off by half of its last digit.
    - Pass@K from n = K samples is "any correct": a multiple of 1/P over P problems.
    - Pass@1 as avg@n is a multiple of 1/(P·n). This finds less the larger P·n: multiples closer than the printed
      digits fit any cell.
    - The default row of the sensitivity table is APO's row of the main table.
    - The distribution table says K = 32, the main table K = 16: with twice the samples no two models keep their
      Pass@K to the digit.
    - Recall and loss rate add up to 100 %.
    """
    main, sensitivity = published("main_results"), published("sensitivity")
    return (
        *_averages(main),
        *_counts(main),
        *_averages(sensitivity),
        *_counts(sensitivity),
        *_differences(sensitivity, main),
        *_distribution(main),
        *_complements(published("coverage")),
    )


def nearest_shares(cell: PublishedCell, denominator: int) -> tuple[Fraction, Fraction]:
    """The multiples of 100/denominator [%] on either side of what is printed; the same twice where it is one."""
    below = floor(exact(cell) * denominator / 100)
    above = below if Fraction(100 * below, denominator) == exact(cell) else below + 1
    return Fraction(100 * below, denominator), Fraction(100 * above, denominator)


def exact(cell: PublishedCell) -> Fraction:
    """The number as printed, without binary rounding."""
    return Fraction(cell.text)


def half_unit(cell: PublishedCell) -> Fraction:
    """Half of the last printed digit: how far the number before rounding can lie from it."""
    return Fraction(1, 2 * 10 ** len(cell.text.partition(".")[2]))


def _averages(cells: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    rows: dict[tuple[str, ...], list[PublishedCell]] = defaultdict(list)
    for cell in cells:
        family = "pass@1" if cell.metric == "pass@1" else "pass@K"
        rows[cell.model, cell.method, cell.setting, family].append(cell)
    for row in rows.values():
        parts = [cell for cell in row if cell.benchmark != AVERAGE]
        mean = sum((exact(cell) for cell in parts), Fraction()) / len(parts)
        slack = sum((half_unit(cell) for cell in parts), Fraction()) / len(parts)
        for average in row:
            if average.benchmark == AVERAGE and abs(exact(average) - mean) > half_unit(average) + slack:
                yield Inconsistency(cell=average, kind="average", expected=f"{float(mean):.2f}")


def _counts(cells: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    for cell in cells:
        if cell.benchmark == AVERAGE:
            continue
        samples = NUM_SAMPLES[cell.benchmark] if cell.metric == "pass@1" else 1
        denominator = NUM_PROBLEMS[cell.benchmark] * samples
        below, above = nearest_shares(cell, denominator)
        if exact(cell) - below <= half_unit(cell) or above - exact(cell) <= half_unit(cell):
            continue
        kind = "cut" if above - exact(cell) < 2 * half_unit(cell) else "count"
        yield Inconsistency(cell=cell, kind=kind, expected=_shares((below, above), denominator))


def _shares(shares: tuple[Fraction, Fraction], denominator: int) -> str:
    parts = [f"{float(share):.2f} ({int(share * denominator / 100)}/{denominator})" for share in shares]
    return " or ".join(parts)


def _differences(sensitivity: tuple[PublishedCell, ...], main: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    same = {(cell.model, cell.method, cell.benchmark, cell.metric): cell for cell in main}
    for cell in sensitivity:
        if cell.setting:
            continue
        other = same[cell.model, cell.method, cell.benchmark, cell.metric]
        if abs(exact(cell) - exact(other)) > half_unit(cell) + half_unit(other):
            yield Inconsistency(cell=cell, kind="differs", expected=f"{other.text} (main results)")


def _distribution(main: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    pass_at_32 = tuple(cell for cell in published("distribution") if cell.metric == "pass@32")
    yield from _counts(pass_at_32)
    at_16 = {
        (cell.model, cell.method): cell for cell in main if (cell.benchmark, cell.metric) == ("minerva_math", "pass@16")
    }
    if all(exact(cell) == exact(at_16[cell.model, cell.method]) for cell in pass_at_32):
        for cell in pass_at_32:
            yield Inconsistency(cell=cell, kind="repeats", expected=f"at least {cell.text}, from 32 samples")


def _complements(coverage: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    recall = {cell.metric.partition("@")[2]: cell for cell in coverage if cell.metric.startswith("recall@")}
    for cell in coverage:
        if cell.metric.startswith("loss_rate@"):
            other = recall[cell.metric.partition("@")[2]]
            if abs(exact(cell) + exact(other) - 100) > half_unit(cell) + half_unit(other):
                yield Inconsistency(cell=cell, kind="complement", expected=f"{float(100 - exact(other)):.2f}")
