"""Dynamic sampling: a step draws prompts until it has enough groups with both correct and wrong completions."""

import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Annotated, ClassVar

import torch

from apo_lightning.advantages import Informative, SignedReward, gae_of
from apo_lightning.common.ranges import Checked, Count, Within
from apo_lightning.contracts import Recipe, estimators_in
from apo_lightning.distributed.gathering import Exchange, from_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.step_metrics import means_of
from apo_lightning.types import Prompt, Rollouts, SamplingRounds, StepOutput, concatenate, mixed


@dataclass
class DynamicSampling(Checked, Part):
    """Trains on mixed groups only, and draws more prompts for the others.

    A group of G completions, c of them correct, is *mixed* iff 0 < c < G. Verdicts count, not rewards: shaping a reward
    does not make a group informative.

        round 1: the step's P prompts
        while mixed < P and rounds < max_rounds: another round of ⌈oversample·(P − mixed)⌉ new prompts
        the batch: the first P mixed groups, in the order (round, position in the round)

    A round ends when all of it is judged; taking groups as they finish would prefer short completions. Surplus is
    thrown away, since the next step's policy has not sampled it. If the rounds find too few, the batch is filled with
    other groups in sampling order, which `Informative` leaves out of the update.

    Under GRPO a group that is not mixed has no gradient: `max_rounds: 1` trains in the same direction, on fewer groups,
    and costs one round. Compare methods at equal sampled tokens.

    Source: Yu et al. 2025 (DAPO), section 3.2.

    Departure: verl ends the run when the rounds find too few groups. Later rounds do not continue the epoch, but draw
    from an order of their own (`later_prompts`): a resumed run needs no position, and the first rounds see the prompts
    that a run without dynamic sampling sees.

    Attributes:
        max_rounds: at least 1; verl's `max_num_gen_batches`.
        oversample: at least 1; above, later rounds draw more prompts than are missing.
    """

    max_rounds: Count = 10
    oversample: Annotated[float | int, Within("[1, inf)")] = 1

    section: ClassVar[str] = "algo.dynamic_sampling."

    name = "dynamic_sampling"

    def num_drawn(self, num_missing: int) -> int:
        """Prompts of a round when this many groups are missing."""
        return math.ceil(round(self.oversample * num_missing, 9))  # 1.1 · 10 is a little more than 11

    def most_prompts(self, prompts_per_step: int) -> int:
        """The prompts that a step samples if no group is mixed."""
        return prompts_per_step + (self.max_rounds - 1) * self.num_drawn(prompts_per_step)

    def check(self, recipe: Recipe) -> None:
        """Raise `ConfigError` where it has no use, or fewer prompts to train on than it may draw."""
        settings, advantage = recipe.settings, recipe.advantage
        if settings.group_size < 2:
            raise ConfigError(f"group_size is {settings.group_size}: algo.dynamic_sampling needs at least 2, or null")
        if gae_of(advantage) is not None:
            raise ConfigError(
                "algo.dynamic_sampling throws away groups of equal rewards, from which algo.critic learns: give "
                "algo.dynamic_sampling=null"
            )
        if not any(isinstance(part, Informative) for part in estimators_in(advantage)):
            raise ConfigError(
                f"algo.advantage is {type(advantage).__name__}: with algo.dynamic_sampling, wrap it in "
                "apo_lightning.advantages.Informative, which drops the groups that fill a batch"
            )
        # A second draw within a step would repeat the completions, whose seeds depend on step and prompt.
        num_prompts, most = len(recipe.data.train_prompts), self.most_prompts(settings.prompts_per_step)
        if most > num_prompts:
            raise ConfigError(
                f"algo.dynamic_sampling may draw {most} prompts in a step, and there are {num_prompts} to train on: "
                f"lower prompts_per_step={settings.prompts_per_step}, max_rounds={self.max_rounds} or "
                f"oversample={self.oversample}, or give more data"
            )

    def notice(self, recipe: Recipe) -> str | None:
        """What a user should know before the run; None: nothing."""
        if not any(isinstance(part, SignedReward) for part in estimators_in(recipe.advantage)):
            return None
        return "algo.dynamic_sampling throws away groups that are all wrong or all correct: SignedReward trains on them"

    def sampled(self, setup: Setup, batch: Sequence[Prompt], rollouts: Rollouts) -> Rollouts:
        """This rank's share of a step's groups; collective.

        Every rank samples its share of every round. Selection and order are global, so they do not depend on the number
        of ranks; selected groups move to the ranks that `Ranks.share` gives their places.

        Args:
            setup: of the run.
            batch: the step's prompts, of all ranks.
            rollouts: this rank's share of the first round.
        """
        rounds = _Rounds(setup, batch)
        later = later_prompts(setup.prompts, batch, setup.seed, setup.ranks.trainer.global_step + 1)
        part, prompts = rollouts, batch
        per_minibatch = setup.settings.prompts_per_minibatch
        for num_rounds in count(1):
            rounds.add(part, len(prompts), per_minibatch)
            if rounds.num_missing <= 0 or num_rounds == self.max_rounds:
                break
            prompts = list(islice(later, self.num_drawn(rounds.num_missing)))
            per_minibatch = len(prompts)
            # A rank without a prompt samples the first one again, so that all ranks enter the same collectives.
            share = setup.ranks.share(prompts, per_minibatch) or prompts[:1]
            part = setup.sample(share, part.group_size, step=part.step, stream="train")
        return rounds.selected()

    def metrics(self, setup: Setup, step: StepOutput) -> dict[str, float]:
        """What the rounds cost, and the mean reward of the groups that are trained on."""
        rollouts, rounds = step.rollouts, step.rollouts.rounds
        assert rounds is not None
        rewards = rollouts.rewards[mixed(rollouts.is_correct)].flatten()
        return means_of({"train/kept/reward": rewards}, setup.device)[0] | {
            "sampling/num_rounds": float(rounds.num_rounds),
            "sampling/num_prompts": float(rounds.num_prompts),
            "sampling/num_tokens": float(rounds.num_tokens),
            "sampling/kept_fraction": rounds.num_mixed / rounds.num_prompts,
            "sampling/discarded_fraction": 1 - rounds.num_trained_tokens / rounds.num_tokens,
        }


class _Rounds:
    """The groups that a step has sampled so far, in sampling order."""

    def __init__(self, setup: Setup, batch: Sequence[Prompt]) -> None:
        self.setup, self.size = setup, len(batch)
        self.parts: list[Rollouts] = []
        self.facts: list[tuple[bool, int]] = []
        """Whether each group of all ranks is mixed, and its number of tokens."""
        self.own: dict[int, Rollouts] = {}
        """The groups that this rank sampled, by their place in that order."""

    def add(self, part: Rollouts, num_prompts: int, prompts_per_minibatch: int) -> None:
        """Add this rank's part of a round of `num_prompts`; collective."""
        ranks = self.setup.ranks
        owners = [ranks.owner(place, prompts_per_minibatch) for place in range(num_prompts)]
        places = (len(self.facts) + place for place, owner in enumerate(owners) if owner == ranks.rank)
        self.own |= zip(places, part.groups, strict=False)
        judged = zip(mixed(part.is_correct).tolist(), part.lengths.sum(dim=1).tolist(), strict=True)
        by_rank = [iter(theirs) for theirs in from_all_ranks(list(judged))]
        self.facts += [next(by_rank[owner]) for owner in owners]
        self.parts.append(part)

    @property
    def num_missing(self) -> int:
        """Mixed groups that the batch still lacks."""
        return self.size - sum(is_mixed for is_mixed, _ in self.facts)

    def selected(self) -> Rollouts:
        """This rank's groups of the batch; collective."""
        chosen = select([is_mixed for is_mixed, _ in self.facts], self.size)
        groups = _at_their_ranks(self.setup, [self.own.get(place) for place in chosen])
        trained = (self.facts[place] for place in chosen)
        rounds = SamplingRounds(
            first=self.parts[0],
            num_rounds=len(self.parts),
            num_prompts=len(self.facts),
            num_mixed=sum(is_mixed for is_mixed, _ in self.facts),
            num_tokens=sum(num_tokens for _, num_tokens in self.facts),
            num_trained_tokens=sum(num_tokens for is_mixed, num_tokens in trained if is_mixed),
        )
        whole = concatenate(self.parts)
        return replace(
            concatenate(groups), num_preempted=whole.num_preempted, reward_metrics=whole.reward_metrics, rounds=rounds
        )


def select(is_mixed: Sequence[bool], size: int) -> list[int]:
    """The groups of a batch, by their places in sampling order: the first mixed ones, then others to fill it."""
    return sorted(range(len(is_mixed)), key=lambda place: not is_mixed[place])[:size]


def later_prompts(prompts: Sequence[Prompt], batch: Sequence[Prompt], seed: int, step: int) -> Iterator[Prompt]:
    """The prompts outside the step's batch by a hash of (seed, step, prompt), on which no resume or rank has effect."""
    taken = {prompt.id for prompt in batch}
    rest = (prompt for prompt in prompts if prompt.id not in taken)
    yield from sorted(rest, key=lambda prompt: sample_seed(seed, "refill", step, prompt.id, 0))


def _at_their_ranks(setup: Setup, chosen: Sequence[Rollouts | None]) -> list[Rollouts]:
    """The groups of this rank's share of the batch. `None`: another rank sampled it. Collective."""
    rank, world_size = setup.ranks.rank, setup.ranks.world_size
    sent: list[list[tuple[int, Rollouts]]] = [[] for _ in range(world_size)]
    for place, group in enumerate(chosen):
        if group is not None:
            sent[setup.ranks.owner(place, setup.settings.prompts_per_minibatch)].append((place, group))
    pickled = [pickle.dumps(part) for part in sent]  # a gather of objects would hold the whole batch on every rank
    sizes = from_all_ranks([len(part) for part in pickled])
    exchange = Exchange([list(range(world_size))] * world_size, sizes, rank, setup.device)
    received = exchange.send(torch.frombuffer(bytearray(b"".join(pickled)), dtype=torch.uint8))
    parts = [pickle.loads(part.numpy().tobytes()) for part in received.split([row[rank] for row in sizes])]
    return [group for _, group in sorted((item for part in parts for item in part), key=lambda item: item[0])]
