"""The expected work of one rank in one step, in completions, tokens and attention pairs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.losses.importance import SEQUENCE_MODES
from apo_lightning.losses.policy_loss import masks_of
from apo_lightning.model.flops import Work
from apo_lightning.parts.critic import CriticSettings
from apo_lightning.parts.dynamic_sampling import DynamicSampling
from apo_lightning.step.settings import StepSettings
from apo_lightning.step.subset import subset_size
from apo_lightning.types import AdvantageInputs, PromptRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Assumptions about a run that its cost depends on. The defaults are the most expensive case.

    Attributes:
        prompt_tokens: mean length of a prompt; None: the longest allowed.
        completion_tokens: mean length of a completion; None: the longest allowed.
        signal_share: share of completions in groups whose rewards differ; in [0, 1].
        error_share: share of completions that are wrong and in such a group; at most `signal_share`.
        failed_share: share of completions in groups without a correct one; at most 1 − `signal_share`.
        rank_balance: with several ranks, mean ÷ maximum of their tokens in (0, 1], `perf/rank_balance` of a run.
    """

    prompt_tokens: float | int | None = None
    completion_tokens: float | int | None = None
    signal_share: float | int = 1.0
    error_share: float | int = 1.0
    failed_share: float | int = 0.0
    rank_balance: float | int = 0.95

    def __post_init__(self) -> None:
        signal = self.signal_share
        length = "a mean length above 0, or null for the longest"
        for name, is_right, wanted in (
            ("prompt_tokens", self.prompt_tokens is None or self.prompt_tokens > 0, length),
            ("completion_tokens", self.completion_tokens is None or self.completion_tokens > 0, length),
            ("signal_share", 0 <= signal <= 1, "a share in [0, 1]"),
            ("error_share", 0 <= self.error_share <= signal, f"at least 0 and at most signal_share, {signal}"),
            ("failed_share", 0 <= self.failed_share <= 1 - signal + 1e-9, "at least 0 and at most 1 - signal_share"),
            ("rank_balance", 0 < self.rank_balance <= 1, "mean ÷ maximum, in (0, 1]"),
        ):
            if not is_right:
                raise ConfigError(f"expected.{name} is {getattr(self, name)}: give {wanted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Shares of a rank's prompts and completions."""

    prompts: float | int
    completions: float | int


NOTHING = Part(prompts=0.0, completions=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One rank's share of one step; token numbers are means."""

    num_prompts: float | int
    group_size: int
    prompt_tokens: float | int
    completion_tokens: float | int
    longest_completion: int
    num_minibatches: int
    updated: Part
    """Run by the update."""
    reference: Part
    """Run by the reference."""
    subset: Part
    """Skipped by the update, but run without a gradient to estimate means over all tokens (`scored_fraction`)."""
    values: Part = NOTHING
    """Run by the critic before the update."""
    has_separate_critic: bool = False
    """Whether the update runs and trains a second model on the same completions."""
    old_logprobs: Part = NOTHING
    """Run without a gradient because their mini-batch comes after an optimizer step."""
    head_passes: float | int = 0
    """Further forwards of the head over what the update runs, each without a gradient."""
    has_full_kl: bool = False
    """Whether the reference runs with every micro-batch of the update."""
    auxiliary: Part = NOTHING
    """Stored completions in proportion to sampled ones, each with its prompt, that an auxiliary term runs."""
    rank_balance: float | int = 1.0
    """Mean ÷ maximum of the ranks' tokens in everything after sampling."""
    rounds: Sequence[float | int] = ()
    """With dynamic sampling, the prompts that one rank samples in each round; else it samples `num_prompts` once."""

    @property
    def num_completions(self) -> float | int:
        """Completions of a rank's prompts."""
        return self.num_prompts * self.group_size

    @property
    def sampling(self) -> list["Workload"]:
        """The workload of each round of sampling, in which only prompts and completions count."""
        return [replace(self, num_prompts=prompts, rounds=()) for prompts in self.rounds] or [self]

    @property
    def num_sampled_tokens(self) -> float | int:
        """Tokens that one rank samples."""
        return sum(part.num_completions for part in self.sampling) * self.completion_tokens

    def describe(self) -> str:
        """The assumptions, in two lines, or three with dynamic sampling."""
        rounds = ", ".join(f"{prompts:g}" for prompts in self.rounds)
        return (
            f"assumed (expected.…): prompts of {self.prompt_tokens:,.0f} tokens, completions of "
            f"{self.completion_tokens:,.0f}\nof the completions in the update {self.updated.completions:.0%}, "
            f"in the pass of the reference {self.reference.completions:.0%}, "
            f"scored before {self.old_logprobs.completions + self.subset.completions:.0%}"
            + (f"; ranks {self.rank_balance:.0%} even" if self.rank_balance < 1 else "")
            + (f"\nprompts a rank and round of sampling: {rounds}" if rounds else "")
        )

    def work(self, part: Part) -> Work:
        """One forward over some completions on the fullest rank; each prompt runs once for its group.

        The last token of a completion is predicted, not run.

        Departure: all lengths are taken as equal, which undercounts the pairs of long completions.
        """
        groups = part.prompts * self.num_prompts / self.rank_balance
        completions = part.completions * self.num_completions / self.rank_balance
        prompt, run = self.prompt_tokens, max(0, self.completion_tokens - 1)
        pairs = groups * _triangle(prompt) + completions * (prompt * run + _triangle(run))
        return Work(
            num_tokens=round(groups * prompt + completions * run),
            num_pairs=round(pairs),
            num_rows=round(completions * self.completion_tokens),
        )


def expected_workload(
    settings: StepSettings,
    loss: PolicyLoss,
    advantage: AdvantageEstimator,
    expected: Expected,
    world_size: int,
    critic: CriticSettings | None = None,
    dynamic_sampling: DynamicSampling | None = None,
    auxiliary_completions: int = 0,
) -> Workload:
    """The workload of one rank.

    Estimator and loss decide which completions the update and the reference run, as in a step. They are asked about
    three groups: one whose rewards differ, one without wrong completions and one without correct ones. Dynamic sampling
    leaves groups of the first kind alone in the update.

    With a critic all kept completions are run, and any may have a token on which the loss reads the reference. An
    auxiliary term runs `auxiliary_completions` in each mini-batch, over all ranks.
    """
    rounds: list[int] = []
    if dynamic_sampling is not None:
        signal = expected.signal_share
        rounds = dynamic_sampling.expected_rounds(settings.prompts_per_step, signal)
        errors = expected.error_share / signal if signal else 1.0
        expected = replace(expected, signal_share=1.0, error_share=errors, failed_share=0.0)
    is_correct, shares = _groups(expected, settings.group_size)
    rewards, lengths = is_correct.float(), torch.ones_like(is_correct, dtype=torch.long)
    given = advantage(
        AdvantageInputs(
            rewards=rewards,
            is_correct=is_correct,
            lengths=lengths,
            truncated=torch.zeros_like(is_correct),
            mean_logprobs=torch.zeros_like(rewards),
            answers=tuple(tuple(map(str, row)) for row in is_correct.tolist()),
            history=tuple(PromptRecord() for _ in is_correct),
            max_completion_tokens=settings.max_completion_tokens,
        )
    )
    masks = masks_of(loss, given.values.flatten(), is_correct.flatten())
    has_critic = critic is not None
    updated = (masks.gradient | has_critic).view_as(is_correct) & given.keep
    read = (masks.reference | has_critic).view_as(is_correct) & updated & loss.needs.reference_statistics
    run = _part(updated, shares)
    minibatches, num_prompts = settings.minibatches_per_step, settings.prompts_per_step / world_size
    rescored = (1 - 1 / minibatches) * (settings.old_logprobs == "trainer")
    # Of the first mini-batch the ratio is known without it, and the entropy is not.
    of_sequences = loss.needs.sequence_values * (1.0 if loss.needs.entropy else 1 - 1 / minibatches)
    of_weights = (settings.importance in SEQUENCE_MODES) / minibatches
    head_passes = (loss.needs.candidate_size > 0) + of_sequences + of_weights
    num_completions = settings.prompts_per_step * settings.group_size
    extra = auxiliary_completions / settings.prompts_per_minibatch
    subset = min(subset_size(num_completions, settings.scored_fraction) / num_completions, 1 - run.completions)
    return Workload(
        num_prompts=num_prompts,
        group_size=settings.group_size,
        prompt_tokens=expected.prompt_tokens or settings.max_prompt_tokens,
        completion_tokens=expected.completion_tokens or settings.max_completion_tokens,
        longest_completion=settings.max_completion_tokens,
        num_minibatches=minibatches,
        updated=run,
        reference=_part(read, shares),
        # So few completions that each has its prompt to itself.
        subset=Part(prompts=min(1.0, subset * settings.group_size), completions=subset),
        old_logprobs=Part(prompts=rescored * run.prompts, completions=rescored * run.completions),
        values=run if has_critic else NOTHING,
        has_separate_critic=has_critic and critic.kind == "separate",
        head_passes=head_passes,
        has_full_kl=loss.needs.full_kl,
        auxiliary=Part(prompts=extra, completions=extra / settings.group_size),
        rank_balance=expected.rank_balance if world_size > 1 else 1.0,
        rounds=[prompts / world_size for prompts in rounds],
    )


def _groups(expected: Expected, group_size: int) -> tuple[Bool[Tensor, "kinds group"], Float[Tensor, "kinds group"]]:
    """One group of each kind: which completions are correct, and the share of all completions that each stands for.

    The first group has correct and wrong completions in the expected ratio, at least one of each; the second is all
    correct, the third all wrong.
    """
    size = max(2, group_size)
    right = expected.signal_share - expected.error_share
    num_right = min(max(1, round(size * right / (expected.signal_share or 1))), size - 1)
    is_correct = torch.zeros(3, size, dtype=torch.bool)
    is_correct[0, :num_right] = is_correct[1] = True
    shares = torch.empty(3, size, dtype=torch.float64)
    shares[0, :num_right] = right / num_right
    shares[0, num_right:] = expected.error_share / (size - num_right)
    shares[1] = (1 - expected.signal_share - expected.failed_share) / size
    shares[2] = expected.failed_share / size
    return is_correct, shares


def _part(runs: Bool[Tensor, "kinds group"], shares: Float[Tensor, "kinds group"]) -> Part:
    """The share that runs; a prompt runs where any completion of its group does."""
    is_any = (runs & (shares > 0)).any(dim=1)
    return Part(prompts=float(shares[is_any].sum()), completions=float(shares[runs].sum()))


def _triangle(length: float | int) -> float:
    return length * (length + 1) / 2
