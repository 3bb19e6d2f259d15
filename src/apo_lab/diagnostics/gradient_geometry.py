"""Lengths and angles of reward, push, pull, KL and entropy in the gradient, and shares outside the trust region."""

import math
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lab.diagnostics.gradient_spaces import SPACES, Measured, logit_geometry, parameter_geometry
from apo_lab.diagnostics.sampling import before_and_after, sampled_completions, share_over_ranks
from apo_lab.diagnostics.settings import PAPER_ANCHOR_SIZE, check_at_least, present
from apo_lightning.callbacks import StepCallback, check_every_n_steps
from apo_lightning.distributed.sharding import ShardedStrategy
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO, PolicyLoss
from apo_lightning.losses.functional import anchor_set
from apo_lightning.types import Advantages, Needs, Probe, Rollouts, StepOutput


class GradientGeometry(StepCallback):
    """Logs `geometry/…`: lengths and angles of the loss's terms, in up to three spaces.

    The terms are those of `term_slopes`: g_a = −∇L_a, weighted as one mini-batch of all measured tokens.
    Their alignment is taken with the ascent directions of Σ_t w_t·Π_S and Σ_t w_t·Π_{T_K} over tokens with A < 0, where
    Π is the policy's mass.

    - `logits`: at the sampling policy, all tokens, in closed form. It shows conflicts *within* a token only: terms that
      act on different tokens are orthogonal by construction. Entropy and the exact KL are left out, since the known
      statistics do not determine their force.
    - `head`: gradients of the head's matrix, exact, at the updated policy with π_old = π, for some prompts.
    - `params`: as `head` for all trained parameters, in a sketch; cosines have an error of about 1/√size.

    For the last two the prompts are also split in halves: see `gradient_geometry.split_half`. Gradients are kept in
    float64 on the host until they are compared, for `head` 8·V·D bytes per term and half.

    Args:
        spaces: of `logits`, `head`, `params`; the last two need a single process.
        num_prompts: prompts of the step, sampled by hash, for `head` and `params`; each space costs a forward and a
            backward of their completions for every term and objective.
        num_completions: completions with A ≠ 0, sampled over all ranks and scored before and after the update, for the
            ratios.
        sketch_size: entries of the sketch.
        every_n_steps: measure at multiples of this step; each costs a forward of reference and policy over all tokens,
            which is shared with a distribution monitor that measures at the same step.
    """

    def __init__(
        self,
        spaces: Sequence[str] = ("logits",),
        num_prompts: int = 16,
        num_completions: int = 64,
        sketch_size: int = 2**16,
        every_n_steps: int = 5,
    ) -> None:
        for space in spaces:
            if space not in SPACES:
                raise ConfigError(f"callbacks.gradient_geometry.spaces has {space!r}: choose from {', '.join(SPACES)}")
        check_at_least("gradient_geometry", 2, num_prompts=num_prompts)
        check_at_least("gradient_geometry", 1, num_completions=num_completions, sketch_size=sketch_size)
        self.every_n_steps = check_every_n_steps("gradient_geometry", every_n_steps)
        self.spaces = tuple(spaces)
        self.num_prompts, self.num_completions, self.sketch_size = num_prompts, num_completions, sketch_size
        self._module: Any = None
        self._sampled: list[int] = []
        self.prepare(None)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Take the loss to differentiate, and its K or the paper's."""
        self.loss = loss or GRPO()
        self.anchor_size = self.loss.needs.anchor_size or PAPER_ANCHOR_SIZE
        self.exclude_sampled = not isinstance(loss, APO) or loss.exclude_sampled
        self.needs = Needs(ref_logprobs=True, anchor_size=self.anchor_size)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse `head` and `params` with several processes or sharded weights."""
        self._module = pl_module
        is_sharded = isinstance(trainer.strategy, ShardedStrategy)
        if (trainer.world_size > 1 or is_sharded) and set(self.spaces) - {"logits"}:
            where = f"{trainer.world_size} processes" if trainer.world_size > 1 else "a sharded policy"
            raise ConfigError(
                f"callbacks.gradient_geometry.spaces is {list(self.spaces)} with {where}: head and params "
                "need one process with whole weights; give spaces=[logits]"
            )

    def probe(self, rollouts: Rollouts, advantages: Advantages) -> Probe:
        """Sample the completions whose ratios are measured."""
        learnt = (advantages.values != 0) & advantages.keep
        self._sampled = sampled_completions(
            rollouts, learnt.flatten(), self.num_completions, seed=self._module.seed, stream="geometry-ratio"
        )
        return before_and_after(rollouts, self._sampled, self.anchor_size)

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Measure this step."""
        measured = Measured(
            step=step,
            loss=self.loss,
            settings=self._module.settings,
            anchor_size=self.anchor_size,
            exclude_sampled=self.exclude_sampled,
        )
        metrics = self._ratios(step)
        for space in self.spaces:
            if space == "logits":
                metrics |= logit_geometry(measured)
            else:
                metrics |= parameter_geometry(
                    measured, space, self._module, num_prompts=self.num_prompts, sketch_size=self.sketch_size
                )
        return {f"geometry/{name}": value for name, value in metrics.items()}

    def _ratios(self, step: StepOutput) -> dict[str, float]:
        """Shares of the sampled completions' tokens outside the trust region."""
        tokens, answer = step.tokens, step.probes[self.state_key]
        reference, before, after = present(answer.reference), present(answer.before), answer.after
        rows = torch.isin(tokens.sequence_ids.cpu(), torch.tensor(self._sampled, dtype=torch.long))
        members = anchor_set(
            present(reference.anchor_ids).cpu(),
            present(reference.anchor_logprobs).cpu(),
            tokens.token_ids.cpu()[rows],
            exclude_sampled=self.exclude_sampled,
        )
        change = (present(after.anchor_logprobs) - present(before.anchor_logprobs)).cpu()
        risen = change.masked_fill(~members, -math.inf).amax(1).exp()
        is_error = (tokens.advantages < 0).cpu()[rows]
        unknown = torch.full(rows.shape, math.nan)
        at_minibatch = step.loss_metrics.get("ratio_updated", unknown).cpu()[rows]
        moved = (after.logprobs - before.logprobs).exp().cpu()
        return {
            "outside_before": _share(self._is_outside(at_minibatch), at_minibatch.isfinite()),
            "outside_after": _share(self._is_outside(moved), moved.isfinite()),
            "anchor_outside_after": _share(risen > 1 + self._high, is_error & risen.isfinite()),
        }

    @property
    def _high(self) -> float:
        """ε_high, the upper side of the trust region."""
        return self.loss.clip_eps if self.loss.clip_eps_high is None else self.loss.clip_eps_high

    def _is_outside(self, ratio: Float[Tensor, "tokens"]) -> Bool[Tensor, "tokens"]:
        return (ratio < 1 - self.loss.clip_eps) | (ratio > 1 + self._high)


def _share(hit: Bool[Tensor, "tokens"], counted: Bool[Tensor, "tokens"]) -> float:
    return share_over_ranks(int((hit & counted).sum()), int(counted.sum()))
