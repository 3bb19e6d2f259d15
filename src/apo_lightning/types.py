"""The records that flow through a training step, in the order in which they are made.

    Prompt → GenerationRequest → Completion → Verdict → Rollouts → AdvantageInputs → Advantages
           → Anchor → LossInputs → LossOutput → StepOutput

All are frozen, so a stage can hand its record on without copying it.

Axes: P prompts of a step, G completions of a prompt (group), B = P·G completions in prompt-major order,
T packed response tokens (completion after completion, no padding), K anchor slots, V vocabulary, D hidden size.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FinishReason = Literal["stop", "length"]
VerdictStatus = Literal["correct", "incorrect", "unparsed", "timeout", "error"]
TOKEN_SETS = ("incorrect", "negative_advantage", "nonzero_advantage", "all")
"""Sets of response tokens, each of which contains those before it: A < 0 and judged wrong, A < 0, A ≠ 0, all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One problem, ready to be sampled from."""

    id: str
    """Stable name, unique within its data set; sample seeds are derived from it."""
    problem: str
    """The problem as the data set states it, before any template."""
    answer: str
    """The gold answer, as the data set states it."""
    text: str
    """What the policy reads: the problem inside the chat or base-model template, with the prefill."""
    token_ids: tuple[int, ...]
    """`text`, tokenised."""
    prefill: str = ""
    """The start of the assistant's turn that is given, not sampled; a reward sees the completion alone."""
    source: str = ""
    """The data set the problem comes from."""
    messages: tuple[Mapping[str, str], ...] | None = field(default=None, compare=False)
    """The conversation inside `text`, without the prefill; None where no chat template is used."""
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The columns of the data set under their own names, values as they were read. Rewards read them; a checkpoint
    between sampling and update has none, as its completions are scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One *sample* to draw: the same prompt appears G times, each time with a seed of its own."""

    prompt_token_ids: tuple[int, ...]
    seed: int
    """In [0, 2⁶³): a hash of (run seed, stream, step, prompt id, sample index), never a counter."""
    max_new_tokens: int
    temperature: float = 1.0
    """Above 0, or 0 for greedy decoding."""
    top_p: float = 1.0
    """In (0, 1]: sampled from the fewest most likely tokens that hold at least this probability; 1: from all."""
    stop_token_ids: tuple[int, ...] = ()
    """Sampling stops *after* any of these; the stop token is part of the completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled continuation of a prompt."""

    token_ids: tuple[int, ...]
    """Never empty. Includes the stop token when `finish_reason` is "stop"."""
    logprobs: tuple[float, ...]
    """log π_rollout of each token [nats], of the distribution that was sampled from (after temperature and top-p)."""
    finish_reason: FinishReason
    """"stop": ended by a stop token; "length": cut at `max_new_tokens`."""
    policy_version: int
    """How many weight syncs the engine had seen."""
    top_logprobs: tuple[float, ...] = ()
    """log-prob of the most likely token at each position [nats]; empty from an engine that does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verifier's verdict on one completion."""

    reward: float
    """Finite; 0 unless judged, the weighted sum of several functions. Usually 1 for a correct answer."""
    status: VerdictStatus
    """`unparsed`, `timeout` and `error` mean *not judged*: reward 0, counted apart, never a silent zero."""
    extracted: str | None = None
    """The answer found in the completion; None where none was found."""
    rewards: Mapping[str, float | None] = field(default_factory=dict, repr=False, hash=False)
    """With several reward functions: name → reward before its weight; None where it does not apply."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    """What a reward function adds to the rollout file, by column: text, numbers, booleans or None."""
    reason: str | None = field(default=None, repr=False, hash=False)
    """What failed, with file and line, where the status is `error`; None where it is not known."""
    is_scored: bool = field(default=True, repr=False)
    """False: no reward applies. The completion is left out of its group's mean and std, and its advantage is 0."""


def count_statuses(statuses: Iterable[VerdictStatus]) -> dict[VerdictStatus, int]:
    """How often each status occurs; every status is present, so that a logger's columns never change.

    Example:
        >>> count_statuses(["correct", "timeout"])
        {'correct': 1, 'incorrect': 0, 'unparsed': 0, 'timeout': 1, 'error': 0}
    """
    counts = Counter(statuses)
    return {status: counts[status] for status in get_args(VerdictStatus)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRounds:
    """What dynamic sampling drew to fill a step. Counts are over all ranks."""

    first: "Rollouts"
    """The groups of the step's own prompts that this rank sampled: all of them, whatever was selected later."""
    num_rounds: int
    num_prompts: int
    num_mixed: int
    """Prompts with both correct and wrong completions."""
    num_tokens: int
    """Response tokens that were sampled."""
    num_trained_tokens: int
    """Those of `num_tokens` in mixed groups that were selected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """P prompts with G scored completions each, in prompt-major order: completion b belongs to prompt b // G."""

    step: int
    prompts: tuple[Prompt, ...]
    completions: tuple[Completion, ...]
    """[P·G]"""
    texts: tuple[str, ...]
    """[P·G] What the reward saw of the completions: all tokens, special ones too, but the stop token at the end."""
    verdicts: tuple[Verdict, ...]
    """[P·G]"""
    group_size: int
    policy_version: int
    num_preempted: int = 0
    """How often the engine evicted a sequence's keys and values for lack of memory, and computed them again."""
    max_completion_tokens: int | None = None
    """The length at which completions were cut."""
    reward_metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Numbers that reward functions log, by name."""
    rounds: SamplingRounds | None = None
    """What these groups were selected from; None: there was no selection."""

    @property
    def first_round(self) -> "Rollouts":
        """The groups of the step's own prompts, before any selection: means over them are unbiased."""
        return self if self.rounds is None else self.rounds.first

    @property
    def groups(self) -> list["Rollouts"]:
        """Each prompt with its completions, as rollouts of its own."""
        size = self.group_size
        return [
            replace(
                self,
                prompts=(prompt,),
                completions=self.completions[start : start + size],
                texts=self.texts[start : start + size],
                verdicts=self.verdicts[start : start + size],
                num_preempted=0,
                reward_metrics={},
            )
            for prompt, start in zip(self.prompts, range(0, len(self.completions), size), strict=True)
        ]

    @property
    def rewards(self) -> Float[Tensor, "prompts group"]:
        """The rewards as a table, one row per prompt."""
        return torch.tensor([verdict.reward for verdict in self.verdicts]).view(-1, self.group_size)

    @property
    def is_correct(self) -> Bool[Tensor, "prompts group"]:
        """True where the verifier said `correct`."""
        return torch.tensor([verdict.status == "correct" for verdict in self.verdicts]).view(-1, self.group_size)

    @property
    def verdict_counts(self) -> dict[VerdictStatus, int]:
        """How many completions got each status."""
        return count_statuses(verdict.status for verdict in self.verdicts)

    @property
    def is_truncated(self) -> Bool[Tensor, "prompts group"]:
        """True where a completion was cut at its length limit."""
        return torch.tensor([c.finish_reason == "length" for c in self.completions]).view(-1, self.group_size)

    @property
    def mean_logprobs(self) -> Float[Tensor, "prompts group"]:
        """Mean of log π_rollout over the tokens of each completion [nats]."""
        means = [sum(c.logprobs) / len(c.logprobs) for c in self.completions]
        return torch.tensor(means).view(-1, self.group_size)

    @property
    def lengths(self) -> Int[Tensor, "prompts group"]:
        """Response tokens of each completion, its stop token included."""
        return torch.tensor([len(completion.token_ids) for completion in self.completions]).view(-1, self.group_size)


def concatenate(parts: Sequence[Rollouts]) -> Rollouts:
    """Join rollouts of one policy that were sampled in several calls."""
    logged: dict[str, tuple[float, ...]] = {}
    for part in parts:
        logged |= {name: logged.get(name, ()) + tuple(values) for name, values in part.reward_metrics.items()}
    return replace(
        parts[0],
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        completions=tuple(completion for part in parts for completion in part.completions),
        texts=tuple(text for part in parts for text in part.texts),
        verdicts=tuple(verdict for part in parts for verdict in part.verdicts),
        num_preempted=sum(part.num_preempted for part in parts),
        reward_metrics=logged,
    )


def mixed(is_correct: Bool[Tensor, "prompts group"]) -> Bool[Tensor, "prompts"]:
    """True where a group has both correct and wrong completions: 0 < c < G."""
    return is_correct.any(dim=1) & ~is_correct.all(dim=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """The inputs of an advantage estimator."""

    rewards: Float[Tensor, "prompts group"]
    is_correct: Bool[Tensor, "prompts group"]
    lengths: Int[Tensor, "prompts group"]
    """Response tokens of each completion."""
    step: int = 1
    """The step of the run, from 1."""
    truncated: Bool[Tensor, "prompts group"] | None = None
    """True where the completion was cut at its length limit."""
    mean_logprobs: Float[Tensor, "prompts group"] | None = None
    """Mean of log π_rollout over a completion's tokens [nats]."""
    answers: tuple[tuple[str | None, ...], ...] | None = None
    """[P][G] the parsed answers; None where none was found."""
    max_completion_tokens: int | None = None
    """The length at which completions were cut."""
    unscored: Bool[Tensor, "prompts group"] | None = None
    """True where no reward applies; None: nowhere."""

    @classmethod
    def of(cls, rollouts: Rollouts) -> "AdvantageInputs":
        """The part of the rollouts that an estimator may read."""
        unscored = torch.tensor([not verdict.is_scored for verdict in rollouts.verdicts]).view(-1, rollouts.group_size)
        return cls(
            rewards=rollouts.rewards,
            is_correct=rollouts.is_correct,
            lengths=rollouts.lengths,
            step=rollouts.step,
            truncated=rollouts.is_truncated,
            mean_logprobs=rollouts.mean_logprobs,
            answers=tuple(tuple(v.extracted for v in group.verdicts) for group in rollouts.groups),
            max_completion_tokens=rollouts.max_completion_tokens,
            unscored=unscored if unscored.any() else None,
        )

    def part(self, prompt: int, members: Sequence[int]) -> "AdvantageInputs":
        """Some completions of one prompt, as a group of their own."""
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        tables = {
            name: values[prompt : prompt + 1, list(members)]
            for name, values in columns.items()
            if isinstance(values, Tensor)
        }
        answers = None if self.answers is None else (tuple(self.answers[prompt][i] for i in members),)
        return replace(self, **tables, answers=answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """How much better each completion was than expected."""

    values: Float[Tensor, "prompts group"]
    keep: Bool[Tensor, "prompts group"]
    """False: the completion leaves the update *and every denominator*, unlike one whose advantage is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The reference's K most likely tokens at each position, T_K; the sampled one may be among them.

    An absent slot (or a token whose reference was not computed) has id −1 and both log-probs −inf.
    """

    token_ids: Int[Tensor, "tokens anchors"]
    ref_logprobs: Float[Tensor, "tokens anchors"]
    """log π_ref [nats], constant, in descending order."""
    logprobs: Float[Tensor, "tokens anchors"]
    """log π [nats] at the same ids; carries the gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """Everything a loss may read, one row per packed response token.

    Optional fields are filled when the loss's `needs` ask for them. All probabilities are full-vocabulary softmaxes
    of logits / temperature.
    """

    token_ids: Int[Tensor, "tokens"]
    sequence_ids: Int[Tensor, "tokens"]
    """Which completion a token belongs to; ascending."""
    logprobs: Float[Tensor, "tokens"]
    """log π(y) [nats]; carries the gradient."""
    old_logprobs: Float[Tensor, "tokens"]
    """log π_old(y) [nats], of the policy that produced the rollout."""
    advantages: Float[Tensor, "tokens"]
    is_correct: Bool[Tensor, "tokens"]
    """The verdict on the token's completion."""
    ref_logprobs: Float[Tensor, "tokens"] | None = None
    """log π_ref(y) [nats]; 0 where it was not computed."""
    anchor: Anchor | None = None
    entropy: Float[Tensor, "tokens"] | None = None
    """−Σ_v π log π [nats]; carries the gradient."""
    full_kl: Float[Tensor, "tokens"] | None = None
    """Σ_v π(v)(log π(v) − log π_ref(v)) [nats] over the whole vocabulary; carries the gradient, 0 where absent."""
    rollout_logprobs: Float[Tensor, "tokens"] | None = None
    """log π_rollout(y) [nats], reported by the engine."""
    columns: Mapping[str, Float[Tensor, "tokens"]] = field(default_factory=dict)
    """Further values of each token by name, constant: the `columns` that `needs` asks parts for, and those that the
    loss's own `completion_columns` gave."""


def detached(inputs: LossInputs) -> LossInputs:
    """The same values of single tokens, without a gradient, and without anchors."""
    tensors = {item.name: getattr(inputs, item.name) for item in fields(inputs)}
    own = {name: value.detach() for name, value in tensors.items() if isinstance(value, Tensor)}
    return replace(inputs, **own, anchor=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """A loss, not yet reduced: the trainer multiplies by one weight per token and sums."""

    per_token: Float[Tensor, "tokens"]
    """To be *minimised*; carries the gradient."""
    metrics: Mapping[str, Float[Tensor, "tokens"]] = field(default_factory=dict)
    """Detached, one value per token, NaN where it does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a loss, an advantage estimator, a callback or a part reads beyond what it always gets.

    Fields are for all of them, unless their description names one.
    """

    ref_logprobs: bool = False
    """log π_ref of the sampled tokens."""
    anchor_size: int = 0
    """K reference anchors per token; 0 for none."""
    entropy: bool = False
    full_kl: bool = False
    """The exact KL(π‖π_ref): runs the reference once more, with every micro-batch of the update."""
    reference_model: bool = False
    """A frozen reference is kept, though it is not run on the tokens of the step: a probe asks for it."""
    gradient_on: str | None = None
    """The smallest of `TOKEN_SETS` outside of which it has no gradient; None: of a loss, it may have one anywhere, and
    of a part, it has none. The update runs no completion without such a token; its tokens stay in every denominator."""
    reference_on: str | None = None
    """The one of `TOKEN_SETS` on which a loss reads the reference; None: all. On the other tokens `ref_logprobs`
    and `full_kl` are 0 and anchors are absent."""
    completions: bool = False
    """Whether a loss has `completion_columns`, which see whole completions. Costs one more forward of the head."""
    columns: frozenset[str] = frozenset()
    """Columns of tokens that a loss reads, and a part must give."""
    binary_rewards: bool = False
    """Whether an estimator is defined for rewards of 0 and 1 alone."""
    answers: bool = False
    """Whether an estimator reads the answers that completions state, `Verdict.extracted`."""

    @property
    def reference_statistics(self) -> bool:
        """True when the reference is run on tokens before the update."""
        return self.ref_logprobs or self.anchor_size > 0

    @property
    def reference(self) -> bool:
        """True when a frozen reference model must be kept."""
        return self.reference_model or self.reference_statistics or self.full_kl

    def gradient_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Tokens on which the loss can have a gradient."""
        return token_mask(self.gradient_on or "all", advantages, is_correct)

    def reference_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Tokens on which the loss reads the reference; none if it reads none."""
        reads = self.reference_statistics or self.full_kl
        return token_mask(self.reference_on or "all", advantages, is_correct) & reads

    def __or__(self, other: "Needs") -> "Needs":
        """The smallest needs that satisfy both; of two sets of tokens the larger, of one and None the one.

        Example:
            >>> (Needs(reference_on="all") | Needs(reference_on="incorrect", entropy=True)).reference_on
            'all'
        """
        pairs = {item.name: (getattr(self, item.name), getattr(other, item.name)) for item in fields(self)}
        sets = {name: pairs.pop(name) for name in ("gradient_on", "reference_on")}
        columns = frozenset.union(*pairs.pop("columns"))
        order = (None, *TOKEN_SETS)
        widest = {name: max(pair, key=order.index) for name, pair in sets.items()}
        return Needs(**{name: max(pair) for name, pair in pairs.items()}, **widest, columns=columns)


def token_mask(
    which: str, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
) -> Bool[Tensor, "tokens"]:
    """True on the tokens of one of `TOKEN_SETS`.

    Example:
        >>> token_mask("incorrect", torch.tensor([-1.0, -1.0, 0.0]), torch.tensor([False, True, False]))
        tensor([ True, False, False])
    """
    if which == "all":
        return torch.ones_like(is_correct)
    if which == "nonzero_advantage":
        return advantages != 0
    negative = advantages < 0
    return negative if which == "negative_advantage" else negative & ~is_correct


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """The policy's statistics of each response token. All but `max_prob` are differentiable."""

    logprobs: Float[Tensor, "tokens"]
    """log π(y) [nats]"""
    entropy: Float[Tensor, "tokens"]
    """In [0, log V] [nats]"""
    max_prob: Float[Tensor, "tokens"]
    """max_v π(v), in [1/V, 1]; detached."""
    anchor_logprobs: Float[Tensor, "tokens anchors"] | None
    """log π at the anchor ids; −inf (and no gradient) at id −1."""
    full_kl: Float[Tensor, "tokens"] | None = None
    """KL(π‖π_ref) over the whole vocabulary [nats]; None unless a loss needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceStatistics:
    """The frozen reference's statistics of each response token. Nothing here carries a gradient."""

    logprobs: Float[Tensor, "tokens"]
    """log π_ref(y) [nats]"""
    anchor_ids: Int[Tensor, "tokens anchors"] | None
    """The K largest, in descending order, ties to the lower id."""
    anchor_logprobs: Float[Tensor, "tokens anchors"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """Per-token facts of a whole step at the policy that *sampled* the tokens; [T] over all B completions."""

    token_ids: Int[Tensor, "tokens"]
    sequence_ids: Int[Tensor, "tokens"]
    """Index b into `Rollouts.completions`; ascending, so a completion's tokens are contiguous."""
    advantages: Float[Tensor, "tokens"]
    is_correct: Bool[Tensor, "tokens"]
    rollout_logprobs: Float[Tensor, "tokens"]
    """log π_rollout [nats], reported by the engine."""
    old_logprobs: Float[Tensor, "tokens"]
    """log π_old [nats], computed by the trainer before the first optimizer step."""
    entropy: Float[Tensor, "tokens"]
    max_prob: Float[Tensor, "tokens"]
    is_scored: Bool[Tensor, "tokens"]
    """Whether the policy was run on the token, for the update or a diagnostic; elsewhere the three above are NaN."""
    ref_logprobs: Float[Tensor, "tokens"] | None = None
    """NaN where the reference was not run."""
    anchor: Anchor | None = None
    """`logprobs` here is detached, at the sampling policy; absent rows where the reference was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Token sequences that a diagnostic chooses, to be scored by the policy after the step's update.

    T counts the tokens of all `completions`, one completion after the other. With several ranks this is one rank's
    share, which may be empty.
    """

    prompts: Sequence[tuple[int, ...]]
    """The prompt of each completion; equal ones are run once."""
    completions: Sequence[tuple[int, ...]]
    """The tokens that are scored, none of them empty."""
    anchors: Int[Tensor, "tokens anchors"] | int = 0
    """Further tokens of every position whose log-probs are wanted: their ids (−1: none), or K, for the reference's K
    most likely tokens there; 0 for none."""
    before: bool = False
    """Whether the sampling policy scores them too, on the same micro-batches, so that only the policy differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStatistics:
    """The result of a probe, of softmax(logits/temperature). Nothing here carries a gradient."""

    probe: Probe
    reference: ReferenceStatistics | None
    """π_ref; None unless the probe asks for the reference's anchors."""
    before: TokenStatistics | None
    """The policy that sampled the step; None unless the probe asks for it."""
    after: TokenStatistics
    """The policy after all optimizer steps of the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The full record of one training step. Callbacks receive it, and change nothing."""

    step: int
    """1 for the first."""
    max_steps: int
    rollouts: Rollouts
    advantages: Advantages
    tokens: StepTokens
    loss_metrics: Mapping[str, Float[Tensor, "tokens"]]
    """The loss's own per-token metrics; NaN where they do not apply, or where the update did not run the token and the
    loss's `metric_defaults` has no value."""
    metrics: Mapping[str, float]
    """What was logged: `train/…`, `sync/…`, `time/…`, `perf/…`, `apo/…`."""
    timings: Mapping[str, float]
    """Seconds of each phase of `module.PHASES`, and of `step`, the whole."""
    probes: Mapping[str, ProbeStatistics] = field(default_factory=dict)
    """The result of each callback's probe, by the callback's `state_key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOutput:
    """One pass over a held-out set."""

    step: int
    """Training steps done before it; 0 for the untrained policy."""
    name: str
    """The benchmark's name, as in `val/<name>/pass@1`."""
    rollouts: Rollouts
    metrics: Mapping[str, float]
