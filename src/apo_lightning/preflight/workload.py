"""How much one rank has to do in one step, in completions, tokens and attention pairs, before any of it is known."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.losses.policy_loss import masks_of
from apo_lightning.model.flops import Work
from apo_lightning.types import AdvantageInputs
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.subset import subset_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What only a run can tell, and its cost depends on. As they stand, the dearest case.

    Attributes:
        prompt_tokens: mean length of a prompt; None: the longest allowed.
        completion_tokens: mean length of a completion; None: the longest allowed.
        signal_share: of the completions, those of groups whose rewards differ; in [0, 1].
        error_share: of the completions, the wrong ones among those; at most `signal_share`.
        failed_share: of the completions, those of groups that are wrong throughout; at most 1 − `signal_share`.
        rank_balance: with several ranks, mean ÷ maximum of their tokens in (0, 1], `perf/rank_balance` of a run; the
            default is that of 8 ranks in the table of `update.balance.balanced`.

    Raises:
        ConfigError: a value outside its range.
    """

    prompt_tokens: float | int | None = None
    completion_tokens: float | int | None = None
    signal_share: float | int = 1.0
    error_share: float | int = 1.0
    failed_share: float | int = 0.0
    rank_balance: float | int = 0.95

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "completion_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"expected.{name} is {value}: give a mean length above 0, or null for the longest")
        if not 0 <= self.error_share <= self.signal_share <= 1:
            raise ConfigError(
                f"expected.error_share is {self.error_share} and expected.signal_share {self.signal_share}: give "
                "0 <= error_share <= signal_share <= 1"
            )
        if not 0 <= self.failed_share <= 1 - self.signal_share + 1e-9:
            raise ConfigError(
                f"expected.failed_share is {self.failed_share} beside a signal_share of {self.signal_share}: give "
                "0 <= failed_share <= 1 - signal_share"
            )
        if not 0 < self.rank_balance <= 1:
            raise ConfigError(f"expected.rank_balance is {self.rank_balance}: give mean ÷ maximum, in (0, 1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of a rank's prompts and completions, as shares of all."""

    prompts: float | int
    completions: float | int


NOTHING = Part(prompts=0.0, completions=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One rank's part of one step."""

    num_prompts: float | int
    group_size: int
    prompt_tokens: float | int
    """Mean length of a prompt."""
    completion_tokens: float | int
    """Mean length of a completion."""
    longest_completion: int
    num_minibatches: int
    updated: Part
    """Run by the update."""
    reference: Part
    """Run by the reference."""
    drawn: Part
    """Run without a gradient for means over all tokens, though the update skips them."""
    later: Part = NOTHING
    """Run without a gradient because the update comes to them after an optimizer step."""
    has_full_kl: bool = False
    """Whether the reference runs beside every micro-batch of the update."""
    rank_balance: float | int = 1.0
    """Mean ÷ maximum of the ranks' tokens in what runs after sampling."""

    @property
    def num_completions(self) -> float | int:
        """Completions that one rank samples."""
        return self.num_prompts * self.group_size

    @property
    def num_sampled_tokens(self) -> float | int:
        """Tokens that one rank samples."""
        return self.num_completions * self.completion_tokens

    def describe(self) -> str:
        """What was supposed, in two lines."""
        return (
            f"supposed (expected.…): prompts of {self.prompt_tokens:,.0f} tokens, completions of "
            f"{self.completion_tokens:,.0f}\nof the completions in the update {self.updated.completions:.0%}, "
            f"in the pass of the reference {self.reference.completions:.0%}, "
            f"scored before {self.later.completions + self.drawn.completions:.0%}"
            + (f"; ranks {self.rank_balance:.0%} even" if self.rank_balance < 1 else "")
        )

    def work(self, part: Part) -> Work:
        """One forward of some completions, each prompt once for those of its group, on the rank that has most of it.

        The last token of a completion is predicted and not run.

        Departure: lengths are taken to be equal, so pairs of long completions are counted too low.

        Example:
            2 groups of 4 completions of 10 tokens behind prompts of 5: 2·5 + 8·9 tokens. Pairs: 2·15 + 8·(45 + 45).

            >>> all_of_it = Part(prompts=1.0, completions=1.0)
            >>> Workload(num_prompts=2, group_size=4, prompt_tokens=5, completion_tokens=10, longest_completion=10,
            ...     num_minibatches=1, updated=all_of_it, reference=NOTHING, drawn=NOTHING).work(all_of_it)
            Work(num_tokens=82, num_pairs=750, num_rows=80)
        """
        groups, completions = (
            share / self.rank_balance
            for share in (part.prompts * self.num_prompts, part.completions * self.num_completions)
        )
        prompt, run = self.prompt_tokens, max(0, self.completion_tokens - 1)
        pairs = groups * _triangle(prompt) + completions * (prompt * run + _triangle(run))
        return Work(
            num_tokens=round(groups * prompt + completions * run),
            num_pairs=round(pairs),
            num_rows=round(completions * self.completion_tokens),
        )


def expected_workload(
    settings: StepSettings, loss: PolicyLoss, advantage: AdvantageEstimator, expected: Expected, world_size: int
) -> Workload:
    """The workload of one rank.

    Which completions the update and the reference run is asked of the estimator and of the loss, as a step asks them:
    of one group whose rewards differ, of one that is right throughout and of one that is wrong throughout.

    Args:
        settings: sizes of a step.
        loss: says where it can have a gradient, and where it reads the reference.
        advantage: says which completions are kept, and their advantages.
        expected: what only a run can tell.
        world_size: ranks that share the prompts.
    """
    is_correct, shares = _groups(expected, settings.group_size)
    rewards, lengths = is_correct.float(), torch.ones_like(is_correct, dtype=torch.long)
    given = advantage(AdvantageInputs(rewards=rewards, is_correct=is_correct, lengths=lengths))
    tokens = given.values.flatten(), is_correct.flatten()
    masks = masks_of(loss, *tokens)
    updated = masks.gradient.view_as(is_correct) & given.keep
    read = masks.reference.view_as(is_correct) & updated & loss.needs.reference_statistics
    run = _part(updated, shares)
    minibatches, num_prompts = settings.minibatches_per_step, settings.prompts_per_step / world_size
    later = (1 - 1 / minibatches) * (settings.old_logprobs == "trainer")
    return Workload(
        num_prompts=num_prompts,
        group_size=settings.group_size,
        prompt_tokens=expected.prompt_tokens or settings.max_prompt_tokens,
        completion_tokens=expected.completion_tokens or settings.max_completion_tokens,
        longest_completion=settings.max_completion_tokens,
        num_minibatches=minibatches,
        updated=run,
        reference=_part(read, shares),
        drawn=_drawn(settings, skipped=1 - run.completions),
        later=Part(prompts=later * run.prompts, completions=later * run.completions),
        has_full_kl=loss.needs.full_kl,
        rank_balance=expected.rank_balance if world_size > 1 else 1.0,
    )


def _groups(expected: Expected, group_size: int) -> tuple[Bool[Tensor, "kinds group"], Float[Tensor, "kinds group"]]:
    """(which are right, the share of all completions that each stands for) of one group of every kind.

    The first has both right and wrong completions, as many as expected and at least one of each; the second is right
    throughout, the third wrong throughout.
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
    """What is run of the groups; a prompt is run where any completion of its group is."""
    is_any = (runs & (shares > 0)).any(dim=1)
    return Part(prompts=float(shares[is_any].sum()), completions=float(shares[runs].sum()))


def _drawn(settings: StepSettings, *, skipped: float) -> Part:
    """The completions that are drawn by lot from what is skipped: few, so each has its prompt to itself."""
    total = settings.prompts_per_step * settings.group_size
    share = min(subset_size(total, settings.scored_fraction) / total, skipped)
    return Part(prompts=min(1.0, share * settings.group_size), completions=share)


def _triangle(length: float | int) -> float:
    return length * (length + 1) / 2
