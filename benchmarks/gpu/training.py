"""Runs of `train.py` as a user starts them, for `make gpu`: every way of training once, and what must agree."""

import csv
import functools
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from safetensors.numpy import load_file

from benchmarks import ROOT
from benchmarks.gpu.rows import MISSED, OK, Row, attempt, judged

STEPS, STOPPED = 4, 2
LEARNING_RATE = 1e-3
COMMON = (
    "model=tiny",
    "model.compute_dtype=bfloat16",
    "model.gradient_checkpointing=true",
    "engine=transformers",
    "callbacks=[export]",
    # A random model gets no sum right, and an update without a reward moves nothing.
    "reward=callable",
    "reward.function._target_=benchmarks.shared.runs.even_start",
    "data.max_operand=20",
    "data.num_validation=8",
    "prompts_per_step=8",
    "prompts_per_minibatch=4",
    f"optimizer.lr={LEARNING_RATE}",
    "scheduler.num_warmup_steps=0",
    f"trainer.max_steps={STEPS}",
    f"trainer.val_check_interval={STOPPED}",
    f"checkpoint.save_every={STOPPED}",
    "checkpoint.keep=9",
)
MODELS = {
    "tiny": (),
    # SmolLM2-135M but for its vocabulary: that of a random model is the character tokenizer's.
    "smollm2": (
        "model.name=smollm2_shape",
        "model.config.hidden_size=576",
        "model.config.intermediate_size=1536",
        "model.config.num_hidden_layers=30",
        "model.config.num_attention_heads=9",
        "model.config.num_key_value_heads=3",
        "model.config.head_dim=64",
        "model.config.initializer_range=0.04",
    ),
}
SECONDS_A_RUN = 150
SAME = 0.02
"""Relative, of a norm; or the mean difference of a weight in learning rates. On a GPU atomic sums end in other last
bits, which Adam can turn into a whole step where a gradient is almost zero; another gradient moves every weight by one.
"""


@dataclass(frozen=True)
class Way:
    """One way of training."""

    name: str
    folder: str
    overrides: Sequence[str] = ()
    same: str = ""
    """What it has in common with the first one, the whole run: "weights", the last ones, or "gradient", the first."""
    passes: int = 3
    """Over the held-out problems: before the first step, in the middle and at the end."""


@dataclass(frozen=True)
class Run:
    """A run that came to its end."""

    folder: Path
    seconds: float

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "metrics.csv").open() as file:
            return list(csv.DictReader(file))

    @property
    def steps(self) -> list[dict[str, str]]:
        """The rows of its training steps."""
        return [row for row in self.rows if row["train/reward"]]

    @property
    def num_passes(self) -> int:
        """Passes over the held-out problems."""
        return sum(any(value for name, value in row.items() if name.startswith("val/")) for row in self.rows)

    @property
    def weights(self) -> Mapping[str, numpy.ndarray]:
        """As they were exported, in float32."""
        files = (self.folder / "checkpoints" / "final").glob("*.safetensors")
        return {name: weight for file in files for name, weight in load_file(file).items()}


def train(folder: Path, overrides: Sequence[str]) -> Run:
    """A run of `train.py` in a process of its own; raises with the line that it ended with."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "train.py", *overrides, f"hydra.run.dir={folder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_A_RUN,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    print(" ".join(overrides), done.stdout, done.stderr, sep="\n", flush=True)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        raise RuntimeError(f"status {done.returncode}: {said[-1]}")
    return Run(folder, time.perf_counter() - begun)


def training_rows(model: str, kind: str) -> Iterator[Row]:
    """One way of training after the other; what one of them breaks the others do not miss."""
    own = [*MODELS[model], "trainer=gpu" if kind == "cuda" else "trainer=cpu"]
    with tempfile.TemporaryDirectory() as root:
        for way in ways_of(kind, Path(root)):
            yield from attempt(f"{model}: {way.name}", way_row(model, way, own, Path(root)))


def ways_of(kind: str, root: Path) -> list[Way]:
    """The whole run first: others go on from it, and are held against it."""
    checkpoint = root / "whole" / "checkpoints" / f"step_{STOPPED:06d}"
    sharded = "fsdp8" if kind == "cuda" else "fsdp_cpu2"
    one_shard = (f"trainer={sharded}", "trainer.devices=1", "trainer.strategy.data_parallel_size=1")
    no_held_out = ("data.num_validation=0", "trainer.val_check_interval=null")
    ways = [
        Way("bfloat16, recomputing, held-out problems", "whole"),
        Way(f"gone on from step {STOPPED}", "resumed", (f"resume={checkpoint}",), same="weights"),
        # Its weights part from the whole run's: FSDP2 gathers norms in bfloat16 too, which autocast leaves alone.
        Way(f"{sharded} with one device", "sharded", one_shard, same="gradient"),
        Way("LoRA, no held-out problems", "lora", ("policy=lora", *no_held_out), passes=0),
    ]
    if kind == "cuda" and importlib.util.find_spec("vllm") is not None:
        ways.append(Way("rollouts by vLLM", "vllm", ("engine=vllm", "kv_cache_gib=2")))
    return ways


def way_row(model: str, way: Way, own: Sequence[str], root: Path) -> Iterator[Row]:
    """Steps, held-out passes, and the largest gap between engine and trainer, which the run itself judges."""
    run = train(root / way.folder, [*COMMON, *own, *way.overrides])
    if not (run.folder / "checkpoints" / f"step_{STEPS:06d}").is_dir():
        raise RuntimeError("the run left no checkpoint of its last step")
    steps, passes = run.steps, run.num_passes
    seconds = min(float(row["time/step"]) for row in steps)
    gap = max(float(row["sync/logprob_gap"] or "nan") for row in steps)
    said = f"{len(steps)} steps of {seconds:.2f} s, {passes} held-out passes, gap {gap:.2g} nats"
    verdict = OK if (len(steps), passes) == (STEPS, way.passes) else MISSED
    target = f"{STEPS} steps, {way.passes} passes"
    figures = {"step_seconds": seconds, "gap": gap, "run_seconds": run.seconds}
    yield Row(check=f"{model}: {way.name}", result=said, target=target, verdict=verdict, figures=figures)
    whole = Run(root / "whole", 0.0)
    if way.same == "weights":
        difference = mean_difference(run.weights, whole.weights)
        said = "the same bits" if difference == 0 else f"{difference:.1e} learning rates a weight"
        yield judged(f"{model}: {way.name}: final weights", difference, said, at_most=SAME)
    if way.same == "gradient":
        found, expected = (float(rows[0]["train/grad_norm"]) for rows in (steps, whole.steps))
        difference = abs(found / expected - 1)
        yield judged(
            f"{model}: {way.name}: first gradient's norm", difference, f"off by {difference:.2%}", at_most=SAME
        )


def mean_difference(found: Mapping[str, numpy.ndarray], expected: Mapping[str, numpy.ndarray]) -> float:
    """Of a weight, in learning rates."""
    if not expected or expected.keys() != found.keys():
        raise RuntimeError(f"{len(found)} tensors were exported, {len(expected)} by the whole run")
    moved = sum(float(numpy.abs(found[name] - weight).sum(dtype="float64")) for name, weight in expected.items())
    return moved / sum(weight.size for weight in expected.values()) / LEARNING_RATE


SECTIONS = {model: functools.partial(training_rows, model) for model in MODELS}
