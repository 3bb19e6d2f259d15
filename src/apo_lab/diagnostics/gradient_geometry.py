"""How reward, push, pull, KL and entropy stand to each other in the gradient, and what leaves the trust region."""

import math
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lab.diagnostics.drawing import drawn_completions
from apo_lab.diagnostics.gradient_spaces import SPACES, Measured, logit_geometry, parameter_geometry
from apo_lightning.callbacks.distribution_monitor import REF_PROB_BUCKETS
from apo_lightning.callbacks.step_callback import StepCallback, check_every_n_steps
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.sharding import ShardedStrategy
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO, PolicyLoss
from apo_lightning.losses.functional import anchor_set
from apo_lightning.types import Advantages, Needs, Probe, Rollouts, StepOutput

PAPER_ANCHOR_SIZE = 8
"""The K of the objectives under a loss without anchors."""


class GradientGeometry(StepCallback):
    """Logs `geometry/…`: lengths and angles of the terms of the loss, in up to three spaces.

    The terms are those of `term_slopes`, g_a = −∇L_a with the weights of one mini-batch of all the tokens that are
    measured. Their alignment is with the ascent directions of J = Σ_t w_t·Π_S and Σ_t w_t·Π_{T_K} over tokens
    of A < 0, Π the policy's mass.

    - `logits`, at the sampling policy, of all tokens in closed form: what a term does to another *within* a token.
      Terms that act on different tokens are at right angles here by construction, so it says nothing of conflicts
      between tokens. Entropy and the exact KL have no closed form in what is known, and are left out.
    - `head`: by the head's matrix alone, exact, at the updated policy with π_old = π, on completions of some prompts.
    - `params`: by all trained parameters, otherwise as `head`, in a sketch: cosines are right to about 1/√size.

    In the last two the prompts are also divided into halves: see `gradient_geometry.split_half`. Every gradient is kept
    whole in float64 on the host until it is compared: for `head` 8·V·D bytes a term and half. They are taken when the
    engine holds its weights again, whose memory the backward cannot have.

    Args:
        spaces: of `logits`, `head`, `params`; the last two with one process only.
        num_prompts: of the step's, drawn by hash for `head` and `params`; each space costs a forward and a backward of
            their completions for every term and objective.
        num_completions: of A ≠ 0, drawn by lot over all ranks and run before and after the update, for the ratios.
        sketch_size: entries that stand for all parameters.
        every_n_steps: measure at the steps that this number divides; each costs a pass of reference and policy over all
            tokens, which the distribution monitor at the same steps shares.
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
        for name, value, least in (
            ("num_prompts", num_prompts, 2),
            ("num_completions", num_completions, 1),
            ("sketch_size", sketch_size, 1),
        ):
            if value < least:
                raise ConfigError(
                    f"callbacks.gradient_geometry.{name} is {value}: give {least} or more, or "
                    "~callbacks.gradient_geometry"
                )
        self.every_n_steps = check_every_n_steps("gradient_geometry", every_n_steps)
        self.spaces = tuple(spaces)
        self.num_prompts, self.num_completions, self.sketch_size = num_prompts, num_completions, sketch_size
        self._module: Any = None
        self._drawn: list[int] = []
        self.prepare(None)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Take the loss that is to be differentiated, and its anchors or the paper's."""
        self.loss = loss or GRPO()
        self.anchor_size = self.loss.needs.anchor_size or PAPER_ANCHOR_SIZE
        self.exclude_sampled = not isinstance(loss, APO) or loss.exclude_sampled
        self.needs = Needs(ref_logprobs=True, anchor_size=self.anchor_size)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse backwards where ranks would have to agree on them."""
        self._module = pl_module
        is_sharded = isinstance(trainer.strategy, ShardedStrategy)
        if (trainer.world_size > 1 or is_sharded) and set(self.spaces) - {"logits"}:
            where = f"{trainer.world_size} processes" if trainer.world_size > 1 else "a sharded policy"
            raise ConfigError(
                f"callbacks.gradient_geometry.spaces is {list(self.spaces)} with {where}: head and params take "
                "gradients in one process, of whole weights; give spaces=[logits]"
            )

    def probe(self, rollouts: Rollouts, advantages: Advantages) -> Probe:
        """Draw the completions whose ratios are looked at after the update."""
        learnt = (advantages.values != 0) & advantages.keep
        self._drawn = drawn_completions(
            rollouts,
            learnt.flatten().nonzero().flatten().tolist(),
            self.num_completions,
            seed=self._module.seed,
            stream="geometry-ratio",
        )
        return Probe(
            prompts=[rollouts.prompts[b // rollouts.group_size].token_ids for b in self._drawn],
            completions=[rollouts.completions[b].token_ids for b in self._drawn],
            anchors=self.anchor_size,
            before=True,
        )

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
        if "logits" in self.spaces:
            metrics |= logit_geometry(measured, REF_PROB_BUCKETS)
        for space in self.spaces:
            if space != "logits":
                metrics |= parameter_geometry(
                    measured, space, self._module, num_prompts=self.num_prompts, sketch_size=self.sketch_size
                )
        return {f"geometry/{name}": value for name, value in metrics.items()}

    def _ratios(self, step: StepOutput) -> dict[str, float]:
        """Shares of the drawn completions' tokens outside the trust region."""
        answer = step.probes[self.state_key]
        assert answer.before is not None
        assert answer.reference is not None
        ids, ref = answer.reference.anchor_ids, answer.reference.anchor_logprobs
        before, after = answer.before.anchor_logprobs, answer.after.anchor_logprobs
        assert ids is not None
        assert ref is not None
        assert before is not None
        assert after is not None
        tokens = step.tokens
        rows = torch.isin(tokens.sequence_ids.cpu(), torch.tensor(self._drawn, dtype=torch.long))
        is_error = (tokens.advantages < 0).cpu()[rows]
        token_ids = tokens.token_ids.cpu()[rows]
        members = anchor_set(ids.cpu(), ref.cpu(), token_ids, exclude_sampled=self.exclude_sampled)
        risen = (after - before).cpu().masked_fill(~members, -math.inf).amax(1).exp()
        at_minibatch = step.loss_metrics.get("ratio_updated")
        first = torch.full(rows.shape, math.nan) if at_minibatch is None else at_minibatch.cpu()
        moved = (answer.after.logprobs - answer.before.logprobs).exp().cpu()
        return {
            "outside_before": self._share(self._is_outside(first[rows]), first[rows].isfinite()),
            "outside_after": self._share(self._is_outside(moved), moved.isfinite()),
            "anchor_outside_after": self._share(risen > 1 + self._high, is_error & risen.isfinite()),
        }

    @property
    def _high(self) -> float:
        """The upper side of the trust region, ε_high."""
        return self.loss.clip_eps if self.loss.clip_eps_high is None else self.loss.clip_eps_high

    def _is_outside(self, ratio: Float[Tensor, "tokens"]) -> Bool[Tensor, "tokens"]:
        return (ratio < 1 - self.loss.clip_eps) | (ratio > 1 + self._high)

    @staticmethod
    def _share(hit: Bool[Tensor, "tokens"], counted: Bool[Tensor, "tokens"]) -> float:
        parts = from_all_ranks((int((hit & counted).sum()), int(counted.sum())))
        num_hit, num_counted = (sum(column) for column in zip(*parts, strict=True))
        return num_hit / num_counted if num_counted else math.nan
