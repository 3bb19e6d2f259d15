"""Parts of the laboratory's methods (see `apo_lightning.step.part`): marks of tokens."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lab.losses.low_probability import LpReg
from apo_lab.losses.minibatch_tokens import MarkingGRPO, MinibatchTokens
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.losses.functional import log_mass
from apo_lightning.model.policy import Policy
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.plan import StepPlan
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages

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
