"""Parts of the methods (see `apo_lightning.step.part`): marks of tokens, and a target of the entropy."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import Number, log_mass
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.policy import Policy
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.plan import StepPlan
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages, LossOutput, Needs, Prompt, Rollouts, StepOutput
from apo_methods.losses.low_probability import LpReg
from apo_methods.losses.minibatch_tokens import MarkingGRPO, MinibatchTokens

ODD = 0x5851F42D4C957F2D
"""A 63-bit odd number: multiplied by a position it moves all bits of a key."""


class TokenMarks(Part):
    """Writes the column `marks`: what the loss's `marks` says of the kept tokens of each mini-batch, 0 on others."""

    name = "token_marks"
    columns = frozenset({"marks"})

    def planned(self, setup: Setup, plan: StepPlan, advantages: Advantages) -> None:
        """Ask the loss before the update; collective."""
        assert isinstance(setup.loss, MarkingGRPO)
        table, keys = plan.table, token_keys(plan.table, setup.seed)
        marks = torch.zeros_like(table.advantages)
        for minibatch in plan.minibatches:
            tokens = torch.isin(table.sequence_ids.cpu(), torch.tensor(minibatch.completions, dtype=torch.long))
            kept = tokens.to(table.device) & table.kept_tokens
            marks[kept] = setup.loss.marks(
                MinibatchTokens(
                    advantages=table.advantages[kept],
                    is_correct=table.is_correct[kept],
                    logprobs=table.rollout_logprobs[kept],
                    keys=keys[kept],
                    from_all_ranks=from_all_ranks,
                )
            )
        table.columns["marks"] = marks


class MinPProxy(TokenMarks):
    """Marks tokens, and writes the column `proxy_logprobs` of `LpReg`: log π_proxy(y) [nats] where marked.

    −∞ where not marked, and where min-p leaves y out. It runs the marked completions once more, before the update.
    """

    name = "min_p_proxy"
    columns = frozenset({"marks", "proxy_logprobs"})

    @torch.no_grad()
    def planned(self, setup: Setup, plan: StepPlan, advantages: Advantages) -> None:
        """Mark tokens and run the policy, which is still the one that sampled, on them; collective."""
        super().planned(setup, plan, advantages)
        assert isinstance(setup.loss, LpReg)
        table = plan.table
        marked, temperature = table.columns["marks"] > 0, setup.settings.temperature
        proxy = torch.full_like(table.advantages, -torch.inf)
        with unsharded_root(setup.policy):
            for microbatch in setup.microbatches(table.sequences, table.completions_with(marked)):
                part = microbatch.part(marked[microbatch.token_index])
                hidden = setup.policy.hidden_states(part)
                proxy[part.token_index] = min_p_logprobs(
                    setup.policy, hidden, part.targets, min_p=setup.loss.min_p, temperature=temperature
                )
        table.columns["proxy_logprobs"] = proxy


def min_p_logprobs(
    policy: Policy,
    hidden: Float[Tensor, "tokens hidden"],
    targets: Int[Tensor, "tokens"],
    *,
    min_p: float,
    temperature: float,
) -> Float[Tensor, "tokens"]:
    """Log-prob of each target among the tokens of probability ≥ min_p·max, renormalised; −∞ for one that is less."""
    size, k = len(policy.head_weight), 64
    while True:
        k = min(k, size)
        top = policy.read_top(hidden, targets, k, temperature=temperature)
        assert top.anchor_logprobs is not None
        lowest = top.anchor_logprobs[:, 0] + math.log(min_p)
        kept = top.anchor_logprobs >= lowest[:, None]
        # As long as the last one is kept, further ones may be.
        if k == size or not kept[:, -1].any():
            return torch.where(top.logprobs >= lowest, top.logprobs - log_mass(top.anchor_logprobs, kept), -torch.inf)
        k *= 4


class EntropyTarget(Part):
    """An entropy bonus, −c·H on every token, whose coefficient c rises while the entropy is at most a target.

        h = −mean log π_rollout over the step's tokens [nats]
        c ← min(c + delta, highest), and the bonus acts,   where h ≤ target
        c ← max(c − delta, 0), and it does not,            elsewhere

    Source: TRL 1.16 (`use_adaptive_entropy`, pull request 6140), after He et al. 2025 (Skywork-OR1). `relative`: Zhang
    et al. 2025 (arXiv 2510.10959), of which the abstract was read; a summary gives 0.4.

    Departure: h is known once a step is sampled and acts in it; TRL's, of each optimizer step, acts in the next. Of
    Zhang et al. the target alone: coefficients by the difficulty of a prompt are left out.

    Args:
        target: > 0 [nats], or a share of the first step's h.
        relative: whether it is a share.
        delta: ≥ 0, the change of c in a step.
        highest: the largest c, ≥ 0.

    Raises:
        ConfigError: a value outside its range.
    """

    name = "entropy_target"

    def __init__(self, *, target: Number, relative: bool = True, delta: Number = 0.005, highest: Number = 1.0) -> None:
        if not 0 < target < math.inf:
            raise ConfigError(
                f"target is {target}: give a positive entropy [nats], or with relative a share such as 0.4"
            )
        if not min(delta, highest) >= 0:
            raise ConfigError(f"delta is {delta} and highest {highest}: give numbers of at least 0")
        self.target, self.relative, self.delta, self.highest = target, relative, delta, highest
        self.state = {"coefficient": 0.0, "entropy": math.nan, "first_entropy": math.nan}

    @property
    def nats(self) -> float:
        """The target [nats]; NaN before the first step is sampled."""
        return self.target * (self.state["first_entropy"] if self.relative else 1.0)

    @property
    def bonus(self) -> float:
        """The coefficient that acts in this step; 0: none does."""
        return self.state["coefficient"] if self.state["entropy"] <= self.nats else 0.0

    @property
    def needs(self) -> Needs:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Completions of A = 0 have a gradient while the bonus acts, which is not known before the first step."""
        return Needs(gradient_on="all" if self.bonus or math.isnan(self.state["entropy"]) else None)

    def sampled(self, setup: Setup, batch: Sequence[Prompt], rollouts: Rollouts) -> Rollouts:
        """Measure the entropy and move the coefficient; collective."""
        logprobs = [value for completion in rollouts.first_round.completions for value in completion.logprobs]
        total, num_tokens = setup.ranks.sums([math.fsum(logprobs), len(logprobs)])
        state, entropy = self.state, -total / num_tokens
        first = entropy if math.isnan(state["first_entropy"]) else state["first_entropy"]
        state |= {"entropy": entropy, "first_entropy": first}
        change = self.delta if entropy <= self.nats else -self.delta
        state["coefficient"] = min(max(state["coefficient"] + change, 0.0), self.highest)
        return rollouts

    def token_loss(
        self, setup: Setup, plan: StepPlan, microbatch: Microbatch, hidden: Float[Tensor, "tokens hidden"]
    ) -> LossOutput | None:
        """−c·H of each token."""
        if not self.bonus:
            return None
        statistics = setup.policy.read_head(hidden, microbatch.targets, temperature=setup.settings.temperature)
        return LossOutput(per_token=-self.bonus * statistics.entropy)

    def metrics(self, setup: Setup, step: StepOutput) -> Mapping[str, float]:
        """The coefficient that acted, the measured entropy and its target [nats]."""
        values = {"bonus": self.bonus, "entropy": self.state["entropy"], "target": self.nats}
        return {f"entropy_target/{key}": value for key, value in values.items()}

    def state_dict(self) -> Mapping[str, Any]:
        """The coefficient, and the entropies of this step and the first."""
        return dict(self.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with them."""
        self.state = dict(state)


def token_keys(table: StepTable, seed: int) -> Int[Tensor, "tokens"]:
    """A hash of (run seed, step, prompt, sample, position) for each token, whichever rank it runs on; collective."""
    rollouts, size = table.rollouts, table.rollouts.group_size
    at_home = [
        sample_seed(seed, "tokens", rollouts.step, prompt.id, sample)
        for prompt in rollouts.prompts
        for sample in range(size)
    ]
    keys = table.assignment.completions.send(torch.tensor(at_home))
    positions = torch.cat([torch.arange(length) for length in table.lengths.tolist()])
    mixed = (keys.repeat_interleave(table.lengths) ^ (positions * ODD)) * ODD
    return (mixed ^ (mixed >> 32)).to(table.device)
