"""How cost grows: the slope of log cost over log size, of the head and of a policy update.

    python -m benchmarks.performance.scaling

1 means in proportion, 0 not at all. The head is the one of a training step, which takes its gradient chunk by chunk,
and the one that is given all tokens at once. Prints Markdown; a few minutes on one core.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.performance.head import WITH_ANCHORS, Case, build
from benchmarks.shared.timing import (
    WITHHELD,
    Action,
    Timing,
    exponent,
    extra_peak_bytes,
    interleave,
    megabytes,
    pin_threads,
    print_header,
    print_table,
    verdict,
)

HEADS = {name: variant for name, variant in WITH_ANCHORS.items() if name != "naive"}
BARS = {"T": 1.05, "V": 1.05, "K": 0.15}
"""Of the time; extra memory in V has its own."""
MEMORY_BAR = 0.1


@dataclass(frozen=True)
class Sizes:
    """The point that all axes pass through, and the axes. Memory in V is fitted at the most tokens."""

    case: Case
    tokens: Sequence[int]
    vocab: Sequence[int]
    anchors: Sequence[int]
    hidden: Sequence[int]
    group: Sequence[int]
    length: Sequence[int]


FULL = Sizes(
    case=Case(tokens=512, hidden=320, vocab=32768, anchors=8),
    tokens=(256, 512, 1024, 2048),
    vocab=(16384, 32768, 65536, 131072),
    anchors=(1, 4, 16, 64),
    hidden=(128, 256, 640, 1024),
    group=(2, 4, 8, 16),
    length=(32, 64, 128, 256),
)
TINY = Sizes(
    case=Case(tokens=32, hidden=16, vocab=256, anchors=2),
    tokens=(16, 48),
    vocab=(128, 1024),
    anchors=(1, 8),
    hidden=(8, 48),
    group=(2, 8),
    length=(2, 16),
)


def timed(actions: dict[int, Action], rounds: int) -> dict[int, Timing]:
    timings = interleave({str(size): action for size, action in actions.items()}, rounds)
    return {size: timings[str(size)] for size in actions}


def row(what: str, timings: dict[int, Timing], bar: float | None) -> list[str]:
    slope = exponent(list(timings), [timing.minimum for timing in timings.values()])
    steady = all(timing.is_steady for timing in timings.values())
    judged = "" if bar is None and steady else verdict(slope, bar, steady=steady) if bar is not None else WITHHELD
    points = ", ".join(f"{size}: {timing.minimum:.3f}" for size, timing in timings.items())
    return [what, f"{slope:.2f}", judged, points]


def head_axes(sizes: Sizes) -> dict[str, list[Case]]:
    return {
        "T": [replace(sizes.case, tokens=value) for value in sizes.tokens],
        "V": [replace(sizes.case, vocab=value) for value in sizes.vocab],
        "K": [replace(sizes.case, anchors=value) for value in sizes.anchors],
        "D": [replace(sizes.case, hidden=value) for value in sizes.hidden],
    }


AXIS: dict[str, Callable[[Case], int]] = {
    "T": lambda case: case.tokens,
    "V": lambda case: case.vocab,
    "K": lambda case: case.anchors,
    "D": lambda case: case.hidden,
}


def head_times(sizes: Sizes, rounds: int) -> list[list[str]]:
    rows = []
    for name, variant in HEADS.items():
        for axis, cases in head_axes(sizes).items():
            timings = timed({AXIS[axis](case): build(variant, case) for case in cases}, rounds)
            rows.append(row(f"{name}: {axis}", timings, BARS.get(axis)))
    return rows


def head_memory(sizes: Sizes) -> list[list[str]]:
    """A fresh process a point. Below a megabyte the allocator's own habits would be fitted."""
    rows = []
    for name, variant in HEADS.items():
        for axis in ("V", "T"):
            cases = head_axes(sizes)[axis]
            if axis == "V":  # with few tokens and a small V, even all logits are a small part
                cases = [replace(case, tokens=max(sizes.tokens)) for case in cases]
            extra = {AXIS[axis](case): max(1e6, extra_peak_bytes(build, variant, case)) for case in cases}
            slope = exponent(list(extra), list(extra.values()))
            judged = verdict(slope, MEMORY_BAR) if axis == "V" else ""
            points = ", ".join(f"{size}: {megabytes(value)}" for size, value in extra.items())
            rows.append([f"{name}: {axis}", f"{slope:.2f}", judged, points])
    return rows


def update_times(sizes: Sizes, rounds: int) -> list[list[str]]:
    """One prompt of 64 tokens: with the group size grow the completions, not the prompt."""
    # Every fresh process imports this file again, and would load all of Lightning.
    from benchmarks.performance import update

    model = update.make_model("llama", num_layers=2)

    def action(group_size: int, length: int) -> Action:
        rollouts = update.make_rollouts(
            update.Shape(64, length, length), model.config.vocab_size, num_groups=1, group_size=group_size
        )
        return update.ours(model, rollouts, torch.float32)

    groups = timed({size: action(size, sizes.length[1]) for size in sizes.group}, rounds)
    lengths = timed({size: action(sizes.group[1], size) for size in sizes.length}, rounds)
    return [row("group size", groups, None), row("completion length", lengths, None)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="sizes at which only the script itself is checked")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    pin_threads(given.threads)
    sizes = TINY if given.tiny else FULL
    case = sizes.case
    print_header("Scaling", "transformers")
    print(f"Head at T={case.tokens} D={case.hidden} V={case.vocab} K={case.anchors}; seconds, min\n")
    print_table(["head, time in", "exponent", "", "points"], head_times(sizes, given.rounds))
    print_table(["head, extra memory in", "exponent", "", "points, MB"], head_memory(sizes))
    print_table(["update, time in", "exponent", "", "points"], update_times(sizes, given.rounds))


if __name__ == "__main__":
    main()
