"""Dynamic sampling: a step draws prompts until it has enough groups with both correct and wrong completions."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Protocol, cast, runtime_checkable

import lightning.pytorch as pl
import torch

from apo_lightning.advantages import AdvantageEstimator, Informative, SignedReward, estimators_in
from apo_lightning.data.datamodule import PromptDataModule
from apo_lightning.distributed.exchange import exchange_objects
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.errors import ConfigError
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.types import Prompt, Rollouts, SamplingRounds, concatenate
from apo_lightning.update.settings import StepSettings


@dataclass(frozen=True)
class DynamicSampling:
    """Trains on mixed groups only, and draws more prompts for the others.

    A group of G completions, c of them correct, is *mixed* iff 0 < c < G. Verdicts count, not rewards: shaping a reward
    does not make a group informative.

        round 1: the step's P prompts
        while mixed < P and rounds < max_rounds: another round of ⌈oversample·(P − mixed)⌉ new prompts
        the batch: the first P mixed groups, in the order (round, position in the round)

    A round ends when all of it is judged; taking groups as they finish would prefer short completions. Surplus is
    thrown away, since the next step's policy has not sampled it. If the rounds find too few, the batch is filled with
    the other groups in sampling order, which `Informative` leaves out of the update.

    A group that is not mixed has no gradient under GRPO, so this trains in the same direction as `max_rounds: 1`, which
    costs one round, with about 1/P(mixed) times as many groups. Compare methods at equal sampled tokens.

    Source: Yu et al. 2025 (DAPO), section 3.2.

    Departure: verl ends the run when the rounds find too few groups. The prompts of later rounds do not continue the
    epoch but have an order of their own at every step (`refill_order`): a resumed run needs no position, and the first
    rounds see the same prompts in the same order as a run of any other algorithm.

    Attributes:
        max_rounds: at least 1; verl's `max_num_gen_batches`.
        oversample: at least 1; above, later rounds draw more prompts than are missing.

    Raises:
        ConfigError: a value outside its range.

    Example:
        >>> DynamicSampling(oversample=1.5).num_drawn(5)
        8
    """

    max_rounds: int = 10
    oversample: float | int = 1

    def __post_init__(self) -> None:
        if self.max_rounds < 1:
            raise ConfigError(f"max_rounds is {self.max_rounds}: give at least 1 round of sampling")
        if not 1 <= self.oversample < math.inf:
            raise ConfigError(f"oversample is {self.oversample}: give at least 1 prompt for a missing group")

    def num_drawn(self, num_missing: int) -> int:
        """Prompts of a round when this many groups are missing."""
        return math.ceil(round(self.oversample * num_missing, 9))

    def most_prompts(self, prompts_per_step: int) -> int:
        """The prompts that a step samples if no group is mixed."""
        return prompts_per_step + (self.max_rounds - 1) * self.num_drawn(prompts_per_step)

    def expected_rounds(self, prompts_per_step: int, mixed_share: float | int) -> list[int]:
        """The prompts of each round if this share of every round's groups is mixed.

        Example:
            >>> DynamicSampling(max_rounds=4).expected_rounds(16, 0.5)
            [16, 8, 4, 2]
        """
        rounds, num_missing = [prompts_per_step], prompts_per_step - mixed_share * prompts_per_step
        while num_missing > 1e-9 and len(rounds) < self.max_rounds:
            rounds.append(self.num_drawn(math.ceil(round(num_missing, 9))))
            num_missing -= mixed_share * rounds[-1]
        return rounds

    def check(self, group_size: int, advantage: AdvantageEstimator, *, has_critic: bool) -> None:
        """Raise `ConfigError` where no group can be mixed, or where other groups would be trained on."""
        if group_size < 2:
            raise ConfigError(
                f"group_size is {group_size} with algo.dynamic_sampling: a group of one is never mixed; give at least "
                "2, or algo.dynamic_sampling=null"
            )
        if has_critic:
            raise ConfigError(
                "algo.dynamic_sampling with algo.critic: a critic learns from the groups of equal rewards that it "
                "throws away; give algo.dynamic_sampling=null"
            )
        if not any(isinstance(part, Informative) for part in estimators_in(advantage)):
            raise ConfigError(
                f"algo.advantage is {type(advantage).__name__} with algo.dynamic_sampling: where its rounds find too "
                "few groups, the others would be trained on; wrap the estimator in apo_lightning.advantages.Informative"
            )

    def check_prompts(self, prompts_per_step: int, num_prompts: int) -> None:
        """Raise `ConfigError` if a step may draw more prompts than there are.

        The seeds of a prompt's completions depend on the step, so a second draw would repeat the first.
        """
        if (most := self.most_prompts(prompts_per_step)) > num_prompts:
            raise ConfigError(
                f"algo.dynamic_sampling may draw {most} prompts in a step (max_rounds {self.max_rounds}, oversample "
                f"{self.oversample}, prompts_per_step {prompts_per_step}) and there are {num_prompts} to train on: "
                "lower one of these, or give more data"
            )

    def notice(self, advantage: AdvantageEstimator) -> str | None:
        """What a user should know before the run; None: nothing."""
        if not any(isinstance(part, SignedReward) for part in estimators_in(advantage)):
            return None
        return (
            "algo.dynamic_sampling throws away groups that are all wrong or all correct, on which SignedReward (nsr, "
            "psr, w_reinforce) trains"
        )


@runtime_checkable
class Run(Protocol):
    """The training module, as far as dynamic sampling knows it."""

    dynamic_sampling: DynamicSampling | None
    settings: StepSettings
    ranks: Ranks
    seed: int

    @property
    def device(self) -> torch.device:
        """Of the policy."""
        ...

    @property
    def trainer(self) -> pl.Trainer:
        """Lightning's."""
        ...

    def sample(self, prompts: Sequence[Prompt], group_size: int, *, step: int, stream: str) -> Rollouts | None:
        """Completions with their verdicts; None: given up, because the run is asked to stop."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A sampled group, of which all ranks know."""

    is_mixed: bool
    num_tokens: int
    rollouts: Rollouts | None
    """The prompt with its completions; None on all ranks but the one that sampled them."""


def refill(run: Run, batch: Sequence[Prompt], rollouts: Rollouts | None) -> Rollouts | None:
    """This rank's share of a step's groups under dynamic sampling; collective.

    Every rank samples its share of every round. Selection and order are global, so they do not depend on the number of
    ranks; selected groups move to the ranks that `Ranks.share` gives their places.

    Args:
        run: with `dynamic_sampling` None it returns the rollouts as they are.
        batch: the step's prompts, of all ranks.
        rollouts: this rank's share of the first round; None: given up.

    Returns:
        None if any rank gave up.
    """
    settings, ranks = run.dynamic_sampling, run.ranks
    if settings is None:
        return rollouts
    pool, part, parts, groups = _pool(run, batch), rollouts, [], []
    owners = [ranks.owner(place, run.settings.prompts_per_minibatch) for place in range(len(batch))]
    for num_rounds in count(1):
        if ranks.max(part is None):
            return None
        assert part is not None
        parts.append(part)
        groups += _judged(part, owners, ranks.rank)
        num_missing = len(batch) - sum(group.is_mixed for group in groups)
        if num_missing <= 0 or num_rounds == settings.max_rounds:
            break
        prompts = list(islice(pool, settings.num_drawn(num_missing)))
        owners = [ranks.owner(place, len(prompts)) for place in range(len(prompts))]
        # A rank without a prompt repeats the first: ranks that share an engine sample together.
        share = ranks.share(prompts, len(prompts)) or prompts[:1]
        part = run.sample(share, part.group_size, step=part.step, stream="train")
    chosen = [groups[i] for i in select([group.is_mixed for group in groups], len(batch))]
    return replace(
        concatenate(_at_their_ranks(run, chosen)),
        num_preempted=sum(part.num_preempted for part in parts),
        rounds=SamplingRounds(
            first=parts[0],
            num_rounds=len(parts),
            num_prompts=len(groups),
            num_mixed=sum(group.is_mixed for group in groups),
            num_tokens=sum(group.num_tokens for group in groups),
            num_trained_tokens=sum(group.num_tokens for group in chosen if group.is_mixed),
        ),
    )


def select(is_mixed: Sequence[bool], size: int) -> list[int]:
    """The groups of a batch, by their places in sampling order: the first mixed ones, then others to fill it.

    Example:
        >>> select([False, True, False, True, True], size=2), select([False, True, False], size=2)
        ([1, 3], [1, 0])
    """
    return sorted(range(len(is_mixed)), key=lambda place: not is_mixed[place])[:size]


def refill_order(prompts: Sequence[Prompt], batch: Sequence[Prompt], seed: int, step: int) -> list[Prompt]:
    """The prompts outside the step's batch, in the order in which its later rounds draw them.

    They are sorted by a hash of (seed, step, prompt), so the order depends neither on earlier steps nor on a resume or
    the number of ranks.
    """
    taken = {prompt.id for prompt in batch}
    rest = (prompt for prompt in prompts if prompt.id not in taken)
    return sorted(rest, key=lambda prompt: sample_seed(seed, "refill", step, prompt.id, 0))


def _pool(run: Run, batch: Sequence[Prompt]) -> Iterator[Prompt]:
    """`refill_order`, computed when a prompt is asked for."""
    data = cast(PromptDataModule, run.trainer.datamodule)  # pyright: ignore[reportAttributeAccessIssue]
    yield from refill_order(data.train_prompts, batch, run.seed, run.trainer.global_step + 1)


def _judged(part: Rollouts, owners: Sequence[int], rank: int) -> list[Group]:
    """The groups of one round in the order of its prompts; collective.

    Args:
        part: sampled by this rank.
        owners: the rank that sampled each prompt of the round.
        rank: this one.
    """
    facts = list(zip(part.is_mixed.tolist(), part.lengths.sum(dim=1).tolist(), strict=True))
    by_rank, own = [iter(theirs) for theirs in from_all_ranks(facts)], iter(part.groups)
    groups = []
    for owner in owners:
        is_mixed, num_tokens = next(by_rank[owner])
        rollouts = next(own) if owner == rank else None
        groups.append(Group(is_mixed=is_mixed, num_tokens=num_tokens, rollouts=rollouts))
    return groups


def _at_their_ranks(run: Run, chosen: Sequence[Group]) -> list[Rollouts]:
    """The groups of this rank's places in the batch; collective."""
    sent: list[list[tuple[int, Rollouts]]] = [[] for _ in range(run.ranks.world_size)]
    for place, group in enumerate(chosen):
        if group.rollouts is not None:
            sent[run.ranks.owner(place, run.settings.prompts_per_minibatch)].append((place, group.rollouts))
    received = dict(item for part in exchange_objects(sent, run.device) for item in part)
    return [received[place] for place in sorted(received)]
