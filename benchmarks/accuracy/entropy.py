"""What every algorithm logs for entropy and max-prob at one policy and one rollout, and what it costs.

    python -m benchmarks.accuracy.entropy [--steps 6] [--full] [--tiny] [OVERRIDE …]

The rollout is sampled once, by the engine of the configuration, and then each algorithm makes its first step from it.
The cost is that of ordinary steps of GRPO, sampled anew. Prints Markdown. SmolLM2-135M takes some minutes on two cores.
"""

import argparse
import contextlib
import csv
import gc
import pickle
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir

from apo_lightning.callbacks import StepCallback
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.run import train
from apo_lightning.types import GenerationRequest, StepOutput
from benchmarks import CONFIGS
from benchmarks.performance.step_runs import recorded_key
from benchmarks.shared.timing import print_header, print_table

ALGORITHMS = sorted(path.stem for path in (CONFIGS / "algo").glob("*.yaml"))
COMMON = ("callbacks=none", "checkpoint.save_every=null", "data.num_validation=0", "scheduler.num_warmup_steps=0")
TINY = (
    "model=tiny",
    "engine=transformers",
    "reward=callable",
    "reward.function._target_=benchmarks.shared.runs.even_start",
)
REPLAY = (
    "engine=transformers",
    "~engine.sequences_per_batch",
    "engine._target_=benchmarks.performance.step_runs.ReplayEngine",
)


class Record(StepCallback):
    """Keeps the completions of a step, for `ReplayEngine`."""

    def __init__(self, path: str, seed: int) -> None:
        self.path = Path(path)
        self.seed = seed

    def on_step(self, step: StepOutput) -> None:
        rollouts = step.rollouts
        recorded = {}
        for b, completion in enumerate(rollouts.completions):
            prompt, sample = rollouts.prompts[b // rollouts.group_size], b % rollouts.group_size
            request = GenerationRequest(
                prompt_token_ids=prompt.token_ids,
                seed=sample_seed(self.seed, "train", step.step, prompt.id, sample),
                max_new_tokens=1,
            )
            recorded[recorded_key(request)] = completion
        self.path.write_bytes(pickle.dumps(recorded))


def logged(folder: Path, *overrides: str) -> list[dict[str, float]]:
    """The rows of a run's metrics.csv."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", overrides=[*COMMON, *overrides])
    with contextlib.redirect_stdout(sys.stderr):
        train(cfg, folder)
    with (folder / "metrics.csv").open() as file:
        rows = [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]
    gc.collect()  # a run's parts refer to one another
    return rows


def compare(folder: Path, overrides: Sequence[str], *, with_full: bool) -> None:
    recording = folder / "recording.pickle"
    record = ("+callbacks.record._target_=benchmarks.accuracy.entropy.Record", f"+callbacks.record.path={recording}")
    one_step = (*overrides, "trainer.max_steps=1")
    full = "scored_fraction=1"
    (exact,) = logged(folder / "exact", *one_step, "algo=grpo", full, *record, "+callbacks.record.seed=${seed}")
    replay = (*one_step, *REPLAY, f"+engine.recording={recording}")
    rows, spread = [], {"train/entropy": 0.0, "train/max_prob": 0.0}
    for algo in ALGORITHMS:
        (found,) = logged(folder / algo, *replay, f"algo={algo}")
        if with_full:
            (scored,) = logged(folder / f"{algo}_full", *replay, f"algo={algo}", full)
            spread = {name: max(far, abs(scored[name] - exact[name])) for name, far in spread.items()}
        rows.append(
            (
                algo,
                f"{found['train/skipped_fraction']:.3f}",
                f"{found['train/surprisal']:.9f}",
                *(cell for name in spread for cell in cells(found, exact, name)),
            )
        )
    rows.append(
        (
            "**full pass**",
            "",
            f"{exact['train/surprisal']:.9f}",
            *(cell for name in spread for cell in (f"{exact[name]:.4f}", "", "")),
        )
    )
    print(
        f"{int(sum(exact[f'reward/num_{status}'] for status in ('correct', 'incorrect', 'unparsed')))} judged "
        f"completions of {exact['train/completion_tokens']:.1f} tokens.\n"
    )
    entropy = ("entropy ± se", "(error / se)", "updated tokens'")
    max_prob = ("max-prob ± se", "(error / se)", "updated tokens'")
    print_table(("algorithm", "skipped", "surprisal", *entropy, *max_prob), rows)
    if with_full:
        print_spread(spread)


def print_spread(spread: dict[str, float]) -> None:
    print("With `scored_fraction=1` the twelve differ from the full pass by rounding: entropy by at most", end=" ")
    print(f"{spread['train/entropy']:.1e} nats, max-prob by at most {spread['train/max_prob']:.1e}.\n")


def cells(found: dict[str, float], exact: dict[str, float], name: str) -> tuple[str, str, str]:
    """The estimate, how far off it is, and the mean over what the update ran."""
    error, se = found[name] - exact[name], found[f"{name}_se"]
    off = f"{error / se:+.1f}" if se > 0 else "exact"
    return f"{found[name]:.4f} ± {se:.4f}", off, f"{found[f'{name}_updated']:.4f}"


def cost(folder: Path, overrides: Sequence[str], num_steps: int) -> None:
    steps = logged(folder / "cost", *overrides, "algo=grpo", f"trainer.max_steps={num_steps + 1}")[1:]
    seconds, scoring = (sum(step[f"time/{phase}"] for step in steps) for phase in ("step", "old_logprobs"))
    print_table(
        ("steps of GRPO", "seconds a step", "scoring the subset", "share of step time"),
        [(str(num_steps), f"{seconds / num_steps:.2f}", f"{scoring / num_steps:.3f}", f"{scoring / seconds:.2%}")],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="of which the cost is taken; 0: leave it out")
    parser.add_argument("--cost-only", action="store_true")
    parser.add_argument("--full", action="store_true", help="each algorithm with everything scored, too")
    parser.add_argument("--tiny", action="store_true", help="a random model")
    given, overrides = parser.parse_known_args()
    overrides = [*(TINY if given.tiny else ()), *overrides]
    print_header("Entropy and max-prob of all tokens", "transformers")
    with tempfile.TemporaryDirectory() as folder:
        if given.steps:
            cost(Path(folder), overrides, given.steps)
        if given.steps == 0 or not given.cost_only:
            compare(Path(folder), overrides, with_full=given.full)


if __name__ == "__main__":
    main()
