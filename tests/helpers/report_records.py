"""Runs and evaluations as they could come out of an experiment: made up, but of realistic size and noise."""

import math
from pathlib import Path

import numpy as np
import pandas as pd

from apo_lightning.evaluation.records import DataCard, Estimate, EvaluationResult, ModelCard, ProblemCount
from apo_report.coverage import CoverageResult
from apo_report.names import METHODS, MODELS
from apo_report.records import Cell, Covered, Evaluated, Measurement, RunCard, Table, TableRow, left, right
from factories import sampling_settings

SHA = "3f9a" * 16
ENTROPY_ENDS = {"grpo": 0.08, "nsr": 0.22, "grpo_kl": 0.33, "apo": 0.30}
SKILL = {None: 0.20, "grpo": 0.42, "nsr": 0.41, "grpo_kl": 0.38, "grpo_kl_error_only": 0.39, "apo": 0.45}
"""Mean pass@1 of a problem under each algorithm."""
SPREAD = {None: 5.0, "grpo": 0.8, "nsr": 1.1, "grpo_kl": 1.3, "grpo_kl_error_only": 1.2, "apo": 1.2}
"""Concentration of the Beta distribution over problems: the larger, the more problems are solved now and then."""


def make_run(algo="apo", *, seed=1, num_steps=200, keys=None, folder=None):
    """A training run whose entropy falls, with APO's coming back."""
    noise = np.random.default_rng([seed, len(algo)])
    steps = np.arange(1, num_steps + 1)
    done = steps / num_steps
    end = ENTROPY_ENDS.get(algo, 0.2)
    back = 0.12 * np.clip(done - 0.3, 0, None) if algo == "apo" else 0
    entropy = end + (0.62 - end) * np.exp(-9 * done) + back
    skill = SKILL.get(algo, 0.4)
    accuracy = 0.22 + (skill - 0.15) * (1 - np.exp(-4 * done))
    every = {
        "train/entropy": entropy + noise.normal(0, 0.02, num_steps),
        "train/reward": accuracy + noise.normal(0, 0.03, num_steps),
        "train/pass@1": accuracy + noise.normal(0, 0.03, num_steps),
        "train/pass@8": np.clip(accuracy + 0.22 - 0.1 * done * (algo == "grpo"), 0, 1)
        + noise.normal(0, 0.03, num_steps),
        "support/coverage_correct": 0.985 - 0.01 * done + noise.normal(0, 0.002, num_steps),
        "support/coverage_incorrect": 0.96
        - (0.07 if algo == "grpo" else 0.01) * done
        + noise.normal(0, 0.004, num_steps),
    }
    return RunCard(
        folder=Path(folder or f"outputs/{algo}_{seed}"),
        algo=algo,
        model="qwen_math7b",
        config={"seed": str(seed)},
        metrics=pd.DataFrame({key: every[key] for key in (every if keys is None else keys)}, index=steps),
    )


def make_result(
    algo=None, *, benchmark="aime2024", model="qwen_math7b", num_problems=30, num_samples=64, truncated=0, verdicts=None
):
    """An evaluation whose problems have a Beta-distributed success rate."""
    noise = np.random.default_rng([num_problems, num_samples, len(benchmark)])
    skill, spread = SKILL.get(algo, 0.4), SPREAD.get(algo, 1.0)
    rates = np.quantile(
        noise.beta(spread * skill, spread * (1 - skill), 5000), (np.arange(num_problems) + 0.5) / num_problems
    )
    counts = np.random.default_rng(len(algo or "")).binomial(num_samples, rates)
    curve = tuple(_estimate(_pass_at_k(num_samples, counts, k)) for k in range(1, num_samples + 1))
    num_correct = int(counts.sum())
    entropy = ENTROPY_ENDS.get(algo, 0.5)
    metrics = {f"pass@{2**power}": curve[2**power - 1] for power in range(num_samples.bit_length())}
    metrics["entropy"] = Estimate(value=entropy, low=entropy - 0.02, high=entropy + 0.02)
    return EvaluationResult(
        benchmark=benchmark,
        model=ModelCard(name=model, path=f"models/{model}", weights_sha256=SHA, dtype="bfloat16", algo=algo),
        data=DataCard(source=f"{benchmark}.jsonl", sha256=SHA, num_problems=num_problems, num_available=num_problems),
        settings=sampling_settings(
            num_samples=num_samples,
            max_completion_tokens=3072,
            samples_per_batch=512,
            prompt="<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n",
            engine="vllm",
            reward="math_verify",
        ),
        versions={"torch": "2.11.0", "vllm": "0.33.0"},
        verdicts=verdicts or {"correct": num_correct, "incorrect": num_problems * num_samples - num_correct},
        num_truncated=truncated,
        num_tokens=600 * num_problems * num_samples,
        metrics=metrics,
        pass_at_k=curve,
        problems=tuple(
            ProblemCount(prompt_id=f"{benchmark}/{index}", num_samples=num_samples, num_correct=int(count))
            for index, count in enumerate(counts)
        ),
    )


def make_evaluated(*args, path="evaluations/results.json", **kwargs):
    """The same, as it was found on disk."""
    return Evaluated(path=Path(path), result=make_result(*args, **kwargs))


def make_measurement(algo=None, *, settings=None, shift=0.0, seed="", **kwargs):
    """The same, as figures and tables take it; `shift` is added to every number."""
    result = make_result(algo, **kwargs)
    return Measurement(
        model=MODELS[result.model.name],
        method=METHODS[algo or "base"],
        settings=settings or {},
        seed=seed,
        benchmark=result.benchmark,
        num_samples=result.settings.num_samples,
        metrics={
            name: Estimate(value=e.value + shift, low=e.low + shift, high=e.high + shift)
            for name, e in result.metrics.items()
        },
        pass_at_k=result.pass_at_k,
    )


def make_covered(model="qwen_math7b", *, miss=0.16):
    """Recall that grows with K: a share `miss`/K^0.9 of the tokens is missed."""
    recall = {
        k: Estimate(value=1 - miss / k**0.9, low=1 - 1.04 * miss / k**0.9, high=1 - 0.96 * miss / k**0.9)
        for k in (1, 2, 4, 8, 16, 32)
    }
    result = CoverageResult(
        preset="math",
        model=ModelCard(name=model, path=f"models/{model}", weights_sha256=SHA, dtype="bfloat16"),
        data=DataCard(source="math_train.jsonl", sha256=SHA, num_problems=1000, num_available=7500),
        prompt="{problem}",
        num_tokens=123456,
        recall=recall,
        versions={"torch": "2.11.0"},
    )
    return Covered(path=Path("coverage/coverage.json"), result=result)


def make_table(name="main_results", *, text="50.67", notes=("Bold: the best of its model.",)):
    """One row with a best value, its interval, and a marked cell."""
    return Table(
        name=name,
        title="Main results",
        columns=(*left("Method"), *right("Pass@1", "Pass@256", group="AIME 24")),
        rows=(
            TableRow(
                cells=(Cell(text="Base"), Cell(text="13.66", value=13.66), Cell(text="73.33", value=73.33)),
                section="Qwen2.5-Math-7B",
            ),
            TableRow(
                cells=(
                    Cell(text="APO"),
                    Cell(text=text, value=50.67, interval=(48.1, 53.2), interval_text="[48.10, 53.20]", bold=True),
                    Cell(text="78.10", value=78.1, marked=True),
                ),
                section="Qwen2.5-Math-7B",
            ),
        ),
        notes=notes,
    )


def _pass_at_k(n, counts, k):
    return np.array([1 - math.comb(n - int(c), k) / math.comb(n, k) for c in counts])


def _estimate(values):
    half = 1.96 * values.std() / math.sqrt(len(values))
    mean = float(values.mean())
    return Estimate(value=mean, low=max(0.0, mean - half), high=min(1.0, mean + half))
