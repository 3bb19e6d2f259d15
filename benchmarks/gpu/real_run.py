"""`experiment=lab/locks` from its base model, for `make gpu`: steps on the GPU against those of a CPU."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.rows import OK, Row, attempt, judged
from benchmarks.gpu.training import Run, train

STEPS = 6
COMMON = (
    "experiment=lab/locks",
    "data.puzzle.secret=0",
    "model.path=docs/lab/bases/locks_a/locks",
    "seed=1",
    "callbacks=default",
    f"trainer.max_steps={STEPS}",
)
SHOWN = ("reward/num_correct", "train/grad_norm", "train/loss")


@dataclass(frozen=True)
class Way:
    """One way of computing the same steps."""

    name: str
    overrides: Sequence[str]
    largest_error: float
    """Relative, of the first gradient's norm: of the norm itself rounding to eight bits changes 2 to 3 %."""


WAYS = (
    Way("float32, eager layers", ("model.compile_layers=false",), 1e-3),
    Way("bfloat16, compiled, recomputing", ("model.compute_dtype=bfloat16", "model.gradient_checkpointing=true"), 5e-2),
)


def run_rows(kind: str) -> Iterator[Row]:
    """A run on the CPU and one in each way on the device, at once; what one of them breaks the others do not miss."""
    device = "trainer=gpu" if kind == "cuda" else "trainer=cpu"
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(1 + len(WAYS)) as pool:
        exact = pool.submit(train, Path(root) / "cpu", [*COMMON, "trainer=cpu"])
        found = [pool.submit(train, Path(root) / str(i), [*COMMON, device, *w.overrides]) for i, w in enumerate(WAYS)]
        yield from attempt("real run: CPU", done_row("CPU", exact))
        for way, run in zip(WAYS, found, strict=True):
            yield from attempt(f"real run: {way.name}", way_rows(way, run, exact))


def done_row(name: str, future: Future[Run]) -> Iterator[Row]:
    """Right answers of its steps, and what the step takes once all is compiled."""
    run = future.result()
    seconds = min(float(row["time/step"]) for row in run.steps)
    said = f"{len(run.steps)} steps, {', '.join(f'{float(row[SHOWN[0]]):.0f}' for row in run.steps)} right"
    yield Row(check=f"real run: {name}", result=said, verdict=OK, figures={"step_seconds": seconds})


def way_rows(way: Way, future: Future[Run], exact: Future[Run]) -> Iterator[Row]:
    """The first gradient's norm against the CPU's, and how far apart later steps are: they sample other tokens soon."""
    yield from done_row(way.name, future)
    pairs = list(zip(future.result().steps, exact.result().steps, strict=True))
    found, expected = (float(row["train/grad_norm"]) for row in pairs[0])
    error = abs(found / expected - 1)
    said = f"off by {error:.1e} ({found:.5f}, CPU {expected:.5f})"
    yield judged(f"real run: {way.name}: first gradient's norm", error, said, at_most=way.largest_error)
    gap = max(float(row["sync/logprob_gap"] or "nan") for row, _ in pairs)
    yield judged(f"real run: {way.name}: gap of engine and trainer", gap, f"{gap:.1e} nats", at_most=0.03)
    for name in SHOWN:
        values = [(float(one[name] or math.nan), float(two[name] or math.nan)) for one, two in pairs]
        said = ", ".join(f"{one:.4g}/{two:.4g}" for one, two in values)
        yield Row(check=f"real run: {way.name}: {name}, here/CPU by step", result=said, figures={"values": values})


SECTIONS = {"real run": run_rows}
