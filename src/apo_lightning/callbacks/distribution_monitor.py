"""Support coverage and anchor ratios, the quantities that APO controls, measured under any loss."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.callbacks.step_callback import StepCallback, check_every_n_steps
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, PolicyLoss
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, anchor_log_ratio, anchor_set, log_mass
from apo_lightning.types import Needs, StepOutput, StepTokens

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
PAPER_ANCHOR_SIZE = 8  # K under a loss without anchors


class DistributionMonitor(StepCallback):
    """Logs `support/…` at the policy that sampled the tokens.

    For tokens of correct and of incorrect completions separately: support coverage J = Σ_{k∈T_K} π(k), entropy and
    max-prob. For tokens of incorrect completions: p10, p50 and p90 of r_anchor and Z_ref. Tokens with a non-finite
    value are left out and counted in `support/num_nonfinite`.

    Source: *Anchored Policy Optimization*, the definitions of J_support, Z_ref and r_anchor.

    Args:
        anchor_size: K of T_K and of the anchor set. None: the loss's own, or the paper's 8.
        every_n_steps: measure at the steps that this number divides; each costs a pass of reference and policy.
    """

    def __init__(self, anchor_size: int | None = None, every_n_steps: int = 5) -> None:
        if anchor_size is not None and anchor_size < 1:
            raise ConfigError(f"callbacks.monitor.anchor_size is {anchor_size}: give 1 or more, or ~callbacks.monitor")
        self.every_n_steps = check_every_n_steps("monitor", every_n_steps)
        self.given_size = anchor_size
        self.prepare(None)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Choose the anchors to measure: the loss's, or the paper's where it has none."""
        self.exclude_sampled = loss.exclude_sampled if isinstance(loss, APO) else True
        self.anchor_size = self.given_size or (0 if loss is None else loss.support_size) or PAPER_ANCHOR_SIZE
        self.needs = Needs(ref_logprobs=True, anchor_size=self.anchor_size)

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Measure this step's tokens of all ranks."""
        parts = from_all_ranks(support_facts(step.tokens, self.anchor_size, exclude_sampled=self.exclude_sampled))
        facts = SupportFacts(*map(torch.cat, zip(*parts, strict=True)))
        finite = facts.select(facts.is_finite)
        incorrect = finite.select(~finite.is_correct)
        metrics = {
            "support/num_tokens": float(len(finite.is_finite)),
            "support/num_nonfinite": float((~facts.is_finite).sum()),
        }
        for verdict, chosen in (("correct", finite.select(finite.is_correct)), ("incorrect", incorrect)):
            if len(chosen.is_correct):
                for name in ("coverage", "entropy", "max_prob"):
                    metrics[f"support/{name}_{verdict}"] = float(getattr(chosen, name).mean())
        for name in ("anchor_ratio", "ref_anchor_mass") if len(incorrect.is_correct) else ():
            for label, share in QUANTILES.items():
                # numpy: torch.quantile refuses more than 2²⁴ values, which a large step has.
                metrics[f"support/{name}_{label}"] = float(np.quantile(getattr(incorrect, name).numpy(), share))
        return metrics


class SupportFacts(NamedTuple):
    """One row per token that the reference has scored; on the CPU, in float64."""

    is_correct: Bool[Tensor, "rows"]
    is_finite: Bool[Tensor, "rows"]
    """False where a value of the row is NaN or infinite, or a log-prob that it derives from is NaN."""
    coverage: Float[Tensor, "rows"]
    """J = Σ_{k∈T_K} π(k), the sampled token included; in [0, 1]."""
    anchor_ratio: Float[Tensor, "rows"]
    """r_anchor; 0 where the anchor set is empty."""
    ref_anchor_mass: Float[Tensor, "rows"]
    """Z_ref, the reference's probability of the anchor set."""
    entropy: Float[Tensor, "rows"]
    max_prob: Float[Tensor, "rows"]

    def select(self, rows: Bool[Tensor, "rows"]) -> "SupportFacts":
        """The rows where `rows` is True."""
        return SupportFacts(*(values[rows] for values in self))


def support_facts(tokens: StepTokens, anchor_size: int, *, exclude_sampled: bool = True) -> SupportFacts:
    """The reference's support of size K at a rank's tokens; those that the reference has not scored are left out.

    Raises:
        ConfigError: the step holds no reference statistics at all.
    """
    if tokens.anchor is None or tokens.ref_logprobs is None:
        raise ConfigError("the distribution monitor found no reference statistics in its step: use ~callbacks.monitor")
    present = (tokens.anchor.token_ids[:, :anchor_size] >= 0).any(1).cpu()

    def rows(values: Tensor) -> Tensor:
        return values.detach().cpu()[present].double()

    # Another diagnostic may have asked for more anchors.
    ids = tokens.anchor.token_ids[:, :anchor_size].cpu()[present]
    logprobs = rows(tokens.anchor.logprobs[:, :anchor_size])
    ref_logprobs = rows(tokens.anchor.ref_logprobs[:, :anchor_size])
    members = anchor_set(ids, ref_logprobs, tokens.token_ids.cpu()[present], exclude_sampled=exclude_sampled)
    values = {
        "coverage": logprobs.exp().where(ids >= 0, 0.0).sum(1),
        "anchor_ratio": anchor_log_ratio(logprobs, ref_logprobs, members).clamp(max=LOG_RATIO_LIMIT).exp(),
        "ref_anchor_mass": log_mass(ref_logprobs, members).exp(),
        "entropy": rows(tokens.entropy),
        "max_prob": rows(tokens.max_prob),
    }
    # A NaN log-prob belongs to no set, so its row could look finite.
    is_finite = ~(logprobs.isnan() | ref_logprobs.isnan()).any(1)
    is_finite &= torch.stack([value.isfinite() for value in values.values()]).all(0)
    return SupportFacts(is_correct=tokens.is_correct.cpu()[present], is_finite=is_finite, **values)
