"""Samples → results: computes everything in `results.json` from the samples file."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import (
    DataCard,
    Estimate,
    EvaluationResult,
    ModelCard,
    ProblemCount,
    Sample,
    SamplingSettings,
)
from apo_lightning.metrics.diversity import Encoder, self_bleu, semantic_similarity
from apo_lightning.metrics.functional import majority_at_n, pass_at_k_curve
from apo_lightning.metrics.intervals import Interval, mean_intervals
from apo_lightning.types import VerdictStatus, count_statuses
from math_answers import equal

NO_VOTE, CORRECT = -1, 0
MOST_COMPARED = 16
"""Classes that an answer of a vote is compared with: of 256 expressions all pairs would take minutes a problem."""
SHARES = ("pass@", "avg@", "maj@", "truncated_fraction")
"""Metrics for which a problem may have any value from 0 to 1."""


def summarise(
    samples: Sequence[Sample],
    *,
    benchmark: str,
    model: ModelCard,
    data: DataCard,
    settings: SamplingSettings,
    versions: Mapping[str, str | None],
    measure_diversity: bool,
    encoder: Encoder | None,
) -> EvaluationResult:
    """Metrics of a finished evaluation, a pure function of the arguments, so that a resumed evaluation gives the same.

    Every metric is a mean over problems of a mean over samples. Intervals cover the choice of problems: other problems
    of the same kind.

    `samples` is a whole file, in its order. `measure_diversity` adds 1 − Self-BLEU, `encoder` the similarity of a
    problem's samples; the other arguments are fields of `EvaluationResult`.
    """
    if not samples:
        raise ConfigError("there are no samples: an evaluation needs at least one problem")
    problems: dict[str, list[Sample]] = {}
    for sample in samples:
        problems.setdefault(sample.prompt_id, []).append(sample)
    values: dict[str, Float[Tensor, "problems"]] = {}
    notes = {}
    num_samples = torch.full((len(problems),), settings.num_samples)
    num_correct = torch.tensor([count_statuses(s.status for s in group)["correct"] for group in problems.values()])
    curve = pass_at_k_curve(num_samples, num_correct, range(1, settings.num_samples + 1))
    values[f"avg@{settings.num_samples}"] = num_correct.double() / num_samples
    if all(sample.extracted is not None for sample in samples if sample.status == "correct"):
        classes = torch.tensor([answer_classes((s.extracted, s.status) for s in group) for group in problems.values()])
        values[f"maj@{settings.num_samples}"] = majority_at_n(classes, classes == CORRECT)
        notes["maj"] = "correct answers vote together, wrong ones with those that equal them; ties count by expectation"
    else:  # the right samples alone would vote
        notes["maj"] = "not measured: the reward does not say which answer it has judged"
    values |= _sample_means(problems)
    texts = [[sample.text for sample in group] for group in problems.values()]
    if measure_diversity:
        values["diversity"] = torch.tensor([1 - self_bleu(group) for group in texts], dtype=torch.float64)
        notes["diversity"] = "1 − Self-BLEU-4, smoothing method 1; tokens: words, LaTeX commands, numbers, symbols"
    if encoder:
        values["semantic_similarity"] = torch.tensor(
            [semantic_similarity(group, encoder) for group in texts], dtype=torch.float64
        )
        notes["semantic_similarity"] = "mean pairwise cosine; an encoder reads the beginning of a text only"
    pass_at_k = tuple(estimate_of(interval) for interval in mean_intervals(curve))
    metrics = {f"pass@{k}": pass_at_k[k - 1] for k in reported_k(settings.num_samples)}
    for name, column in values.items():
        estimate = estimate_of(score_interval(name, column))
        if name == "completion_tokens":
            longest = float(settings.max_completion_tokens)
            if column.min() == column.max():  # no spread: the limits of a length say more than those of any number
                estimate = estimate_of(mean_intervals(column[:, None], highest=longest)[0])
            estimate = replace(estimate, high=min(estimate.high, longest))
        metrics[name] = estimate
    return EvaluationResult(
        benchmark=benchmark,
        model=model,
        data=data,
        settings=settings,
        versions=versions,
        verdicts=count_statuses(sample.status for sample in samples),
        num_truncated=sum(sample.finish_reason == "length" for sample in samples),
        num_tokens=sum(sample.num_tokens for sample in samples),
        metrics=metrics,
        pass_at_k=pass_at_k,
        problems=tuple(
            ProblemCount(prompt_id=name, num_samples=len(group), num_correct=correct)
            for (name, group), correct in zip(problems.items(), num_correct.tolist(), strict=True)
        ),
        by_problem={name: tuple(column.tolist()) for name, column in values.items()},
        notes=notes,
    )


def score_range(name: str) -> tuple[float, float]:
    """The lowest and highest possible score of one problem.

    Example:
        >>> score_range("pass@4"), score_range("entropy"), score_range("semantic_similarity")
        ((0.0, 1.0), (0.0, inf), (-1.0, 1.0))
    """
    lowest = -1.0 if name in ("semantic_similarity", "gain") else 0.0
    return lowest, math.inf if name in ("entropy", "completion_tokens") else 1.0


def score_interval(name: str, values: Float[Tensor, "problems"]) -> Interval:
    """The interval of a metric's mean over problems.

    For a share of samples, an unseen problem may have any value; for other metrics, only values within those seen.
    """
    lowest, highest = score_range(name)
    if name.startswith(SHARES):
        return mean_intervals(values[:, None])[0]
    interval = mean_intervals(values[:, None], lowest=-math.inf, highest=math.inf)[0]
    return Interval(mean=interval.mean, low=max(interval.low, lowest), high=min(interval.high, highest))


def estimate_of(interval: Interval) -> Estimate:
    """The interval as an `Estimate`."""
    return Estimate(value=interval.mean, low=interval.low, high=interval.high)


def reported_k(num_samples: int) -> list[int]:
    """The values of k that are reported: powers of two up to n, and n."""
    return sorted({2**i for i in range(num_samples.bit_length())} | {num_samples})


def answer_classes(answers: Iterable[tuple[str | None, VerdictStatus]]) -> list[int]:
    r"""Class of each answer in the vote: 0 if correct, −1 if not judged, else one number for answers that are equal.

    A wrong answer is compared with the `MOST_COMPARED` classes that have the most votes so far, one answer of each.

    Example:
        >>> answer_classes([("1/2", "correct"), ("0.5", "correct"), (r"\frac32", "incorrect"), ("1.5", "incorrect"),
        ...     ("3", "incorrect"), (None, "unparsed")])
        [0, 0, 1, 1, 2, -1]
    """
    wrong: dict[str, int] = {}
    first: dict[int, str] = {}
    votes = Counter[int]()
    classes = []
    for answer, status in answers:
        if status == "correct":
            classes.append(CORRECT)
        elif answer is None or status != "incorrect":
            classes.append(NO_VOTE)
        else:
            if answer not in wrong:
                likely = (number for number, _ in votes.most_common(MOST_COMPARED))
                wrong[answer] = next((n for n in likely if equal(first[n], answer)), len(first) + 1)
                first.setdefault(wrong[answer], answer)
            votes[wrong[answer]] += 1
            classes.append(wrong[answer])
    return classes


def _sample_means(problems: Mapping[str, Sequence[Sample]]) -> dict[str, Float[Tensor, "problems"]]:
    columns = {
        "truncated_fraction": [[float(s.finish_reason == "length") for s in group] for group in problems.values()],
        "completion_tokens": [[float(s.num_tokens) for s in group] for group in problems.values()],
    }
    for name in ("entropy", "max_prob", "support_coverage", "outside_support"):
        values = [[getattr(sample, name) for sample in group] for group in problems.values()]
        if all(value is not None for group in values for value in group):
            columns[name] = values
    return {
        name: torch.tensor([sum(group) / len(group) for group in groups], dtype=torch.float64)
        for name, groups in columns.items()
    }
