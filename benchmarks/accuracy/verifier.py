"""How often the verifier accepts right and wrong answers, and how fast, next to plain math-verify where it is there.

    python -m benchmarks.accuracy.verifier --data DIR

DIR holds the benchmarks as JSON lines with an `answer` each: aime2024, aime2025, amc2023, math500, minerva_math.
Prints Markdown. Takes a few minutes on two cores.
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from apo_lightning.rewards import MathVerifyReward
from benchmarks.accuracy.answer_rewrites import Rewrite, read_golds, rewrites
from benchmarks.accuracy.differential import plain
from benchmarks.shared.timing import has_peer

BENCHMARKS = ("aime2024", "aime2025", "amc2023", "math500", "minerva_math")


@dataclass(frozen=True)
class Judged:
    """One answer and who accepts it; None where plain math-verify was not asked."""

    benchmark: str
    rewrite: Rewrite
    ours: bool
    plain: bool | None


@dataclass(frozen=True)
class Speed:
    """How many answers a second one side judged."""

    what: str
    answers_per_second_ours: float
    answers_per_second_plain: float


def main() -> None:
    parser = argparse.ArgumentParser(description="The verifier's errors and speed, as Markdown.")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the benchmarks")
    parser.add_argument(
        "--plain-sample", type=int, default=40, help="answers a kind and benchmark for plain math-verify"
    )
    arguments = parser.parse_args()
    if not has_peer("math-verify"):
        arguments.plain_sample = 0
    reward = MathVerifyReward(num_workers=2)
    reward.score([r"\boxed{\sqrt{2}}", r"\boxed{\sqrt{3}}"], ["x", "y"])  # starts both workers
    made = {name: list(rewrites(read_golds(arguments.data / f"{name}.jsonl"))) for name in BENCHMARKS}
    judged = [row for name in BENCHMARKS for row in judge(name, made[name], reward, arguments.plain_sample)]
    everything = [rewrite for name in BENCHMARKS for rewrite in made[name]]
    speeds = measure(everything, reward, with_plain=arguments.plain_sample > 0)
    reward.close()
    print_report(judged, speeds, arguments.plain_sample)


def judge(benchmark: str, made: Sequence[Rewrite], reward: MathVerifyReward, plain_sample: int) -> list[Judged]:
    verdicts = reward.score([rewrite.completion for rewrite in made], [rewrite.gold for rewrite in made])
    sampled = sample_per_kind(made, plain_sample)
    return [
        Judged(benchmark, rewrite, verdict.status == "correct", plain(rewrite) if index in sampled else None)
        for index, (rewrite, verdict) in enumerate(zip(made, verdicts, strict=True))
    ]


def sample_per_kind(made: Sequence[Rewrite], size: int) -> set[int]:
    """Indices of up to `size` answers of every kind, the same in each run."""
    groups: dict[tuple[str, bool], list[int]] = {}
    for index, rewrite in enumerate(made):
        groups.setdefault((rewrite.kind, rewrite.is_equal), []).append(index)
    draw = random.Random(0)
    return {index for indices in groups.values() for index in draw.sample(indices, min(size, len(indices)))}


def measure(made: Sequence[Rewrite], reward: MathVerifyReward, *, with_plain: bool) -> list[Speed]:
    """Speeds on random answers; ours with two workers, plain math-verify in one process."""
    draw = random.Random(1)
    integers = [rewrite for rewrite in made if rewrite.gold.isdigit()]
    others = [rewrite for rewrite in made if not rewrite.gold.lstrip("-").isdigit()]
    groups = {
        "right, integer golds": [rewrite for rewrite in integers if rewrite.is_equal],
        "wrong, integer golds": [rewrite for rewrite in integers if not rewrite.is_equal],
        "right, other golds": [rewrite for rewrite in others if rewrite.is_equal],
        "wrong, other golds": [rewrite for rewrite in others if not rewrite.is_equal],
    }
    speeds = []
    for what, group in groups.items():
        few, many = draw.sample(group, 200), draw.sample(group, min(1500, len(group)))
        plain_speed = per_second(few, score_plain) if with_plain else math.nan
        speeds.append(Speed(what, per_second(many, lambda rows: score(reward, rows)), plain_speed))
    step = [Rewrite(str(n // 8), "integer", rf"so it is \boxed{{{n // 8 + n % 2}}}", n % 2 == 0) for n in range(4096)]
    plain_speed = per_second(step[:200], score_plain) if with_plain else math.nan
    return [*speeds, Speed("a step of 4096 integers", per_second(step, lambda rows: score(reward, rows)), plain_speed)]


def score(reward: MathVerifyReward, rows: Sequence[Rewrite]) -> None:
    reward.score([row.completion for row in rows], [row.gold for row in rows])


def score_plain(rows: Sequence[Rewrite]) -> None:
    for row in rows:
        plain(row)


def per_second(rows: Sequence[Rewrite], action: Callable[[Sequence[Rewrite]], None]) -> float:
    start = time.perf_counter()
    action(rows)
    return len(rows) / (time.perf_counter() - start)


def print_report(judged: Sequence[Judged], speeds: Sequence[Speed], plain_sample: int) -> None:
    print(f"Plain math-verify: up to {plain_sample} answers of each kind and benchmark.\n")
    for is_equal, title in ((True, "Equivalent answers"), (False, "Wrong answers")):
        rows = [row for row in judged if row.rewrite.is_equal == is_equal]
        print(f"## {title}: accepted\n")
        print_table("benchmark", [(name, [r for r in rows if r.benchmark == name]) for name in BENCHMARKS], rows)
        kinds = dict.fromkeys(row.rewrite.kind for row in rows)
        print_table("kind", [(kind, [r for r in rows if r.rewrite.kind == kind]) for kind in kinds], rows)
    print("## Speed: answers per second\n\n| answers | ours, 2 workers | plain, 1 process |\n|---|---|---|")
    for speed in speeds:
        print(f"| {speed.what} | {speed.answers_per_second_ours:,.0f} | {speed.answers_per_second_plain:,.0f} |")
    mistakes = [row for row in judged if row.ours != row.rewrite.is_equal]
    if mistakes:
        print(f"\n## Our {len(mistakes)} mistakes{', the first 40' if len(mistakes) > 40 else ''}\n")
    for row in mistakes[:40]:
        rewrite = row.rewrite
        verb = "refused" if rewrite.is_equal else "accepted"
        print(f"- {verb} ({row.benchmark}, {rewrite.kind}): `{rewrite.gold}` — `{rewrite.completion.splitlines()[-1]}`")


def print_table(name: str, groups: Iterable[tuple[str, Sequence[Judged]]], everything: Sequence[Judged]) -> None:
    print(f"| {name} | answers | ours | asked of plain | plain |\n|---|---|---|---|---|")
    for label, rows in [*groups, ("**all**", everything)]:
        asked = [row for row in rows if row.plain is not None]
        ours, theirs = share([row.ours for row in rows]), share([bool(row.plain) for row in asked])
        print(f"| {label} | {len(rows)} | {ours} | {len(asked)} | {theirs} |")
    print()


def share(accepted: Sequence[bool]) -> str:
    return f"{100 * sum(accepted) / len(accepted):.2f} % ({sum(accepted)})" if accepted else "—"


if __name__ == "__main__":
    main()
