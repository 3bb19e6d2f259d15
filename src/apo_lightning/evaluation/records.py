"""Records of an evaluation: a `Sample` is a line of `samples.jsonl`, an `EvaluationResult` is `results.json`.

Prompt → Completion + Verdict → Sample → EvaluationResult
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator

from apo_lightning.types import FinishReason, VerdictStatus

SCHEMA_VERSION = 3
"""Version of `results.json`; newer versions are refused when read."""
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""JSON has no NaN: it is null in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion of one problem: a line of `samples.jsonl`."""

    prompt_id: str
    sample: int
    """Index of the sample within its problem, 0 … n − 1."""
    seed: int
    status: VerdictStatus
    reward: float
    extracted: str | None
    """The verified answer; None where none was found."""
    finish_reason: FinishReason
    num_tokens: int
    """Response tokens, the stop token included."""
    logprob: float
    """log π of the whole completion [nats], of the distribution sampled from."""
    entropy: float | None
    """Mean token entropy over the completion [nats]; None without token statistics."""
    max_prob: float | None
    """Mean over its tokens of the most likely token's probability."""
    support_coverage: float | None
    """Mean over its tokens of the policy's mass on the reference's top K; None without a reference."""
    outside_support: float | None
    """Share of its tokens outside the reference's top K."""
    text: str
    """The verified text: all tokens, special ones included, without the stop token at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and its 95 % confidence interval over problems."""

    value: Number
    low: Number
    high: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemCount:
    """Samples of one problem, and how many were correct."""

    prompt_id: str
    num_samples: int
    num_correct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The identity of the measured policy."""

    name: str
    """The name in the model config: `qwen_math7b`."""
    path: str | None
    """Folder or hub id of its weights; None for random weights."""
    weights_sha256: str
    dtype: str
    """The dtype of matrix products: `bfloat16`."""
    algo: str | None = None
    """The stem of the `algo=` that trained it; None for a model as it was downloaded."""
    run: str | None = None
    """The training run's folder; None without one."""
    overrides: tuple[str, ...] = ()
    """The training run's Hydra overrides, as typed."""
    seed: int | None = None
    """The seed of the training run, or of random weights; None without one, or in schema 1."""
    step: int | None = None
    """Finished training steps of `run` at this snapshot, 0 for its initial model; None: no snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCard:
    """The identity of the measured problems."""

    source: str
    """File name, or `hub id (config, split)`."""
    sha256: str
    """SHA-256 of the problems and answers in order."""
    num_problems: int
    """Number of problems measured."""
    num_available: int
    """Number of problems in the whole set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """Everything besides model and data that determines the samples and their metrics."""

    num_samples: int
    """n completions per problem."""
    temperature: float
    top_p: float
    max_completion_tokens: int
    seed: int
    samples_per_batch: int
    """Samples per call of the engine; floating-point sums depend on it in the last bits."""
    prompt: str
    """A problem inside its template, `{problem}` standing for it."""
    engine: str
    reward: str
    """Class and arguments of the reward: `MathVerifyReward(timeout_s=5.0)`."""
    stop_tokens: tuple[str, ...] | None = None
    """Tokens that end a completion in addition to the model's own; None: schema 1."""
    support_anchor_size: int | None = None
    """K of `support_coverage` and `outside_support`; None: not measured."""
    encoder: str | None = None
    """The encoder of `semantic_similarity`; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """`results.json`: one policy on one benchmark."""

    benchmark: str
    """Stem of the `benchmark=` config: `aime2024`."""
    model: ModelCard
    data: DataCard
    settings: SamplingSettings
    versions: Mapping[str, str | None]
    verdicts: Mapping[VerdictStatus, int]
    """Number of samples with each status."""
    num_truncated: int
    """Samples cut at the token limit."""
    num_tokens: int
    """Response tokens of all samples."""
    metrics: Mapping[str, Estimate]
    """Metric name → estimate: `pass@1`, `pass@2`, `pass@4` … `pass@{n}`, `avg@{n}`, `maj@{n}`, `truncated_fraction`,
    `completion_tokens`, `entropy` [nats], `max_prob`; on request `diversity` (1 − Self-BLEU), `semantic_similarity`,
    `support_coverage` and `outside_support`. Fractions, not per cent."""
    pass_at_k: tuple[Estimate, ...]
    """The whole curve: entry k − 1 is pass@k."""
    problems: tuple[ProblemCount, ...]
    """Counts of each problem, in the benchmark's order."""
    by_problem: Mapping[str, tuple[Number, ...]] = field(default_factory=dict)
    """Each problem's value of every metric but pass@k, in that order; needed for the interval of a mean over training
    seeds. Empty: schema 1."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Choices in how a metric was computed: the tokenizer of Self-BLEU, the encoder of the similarity."""
    samples_sha256: str | None = None
    """Hash of the file of samples; None: an earlier version wrote none."""
    schema: int = SCHEMA_VERSION

    @property
    def title(self) -> str:
        """The benchmark, and the step of a snapshot."""
        return self.benchmark if self.model.step is None else f"{self.benchmark}, step {self.model.step}"
