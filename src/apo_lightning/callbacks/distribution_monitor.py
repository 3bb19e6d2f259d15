"""Support coverage and anchor ratios, the quantities that APO controls, measured under any loss."""

from collections.abc import Sequence
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
REF_PROB_BUCKETS = ((0.0, 0.01), (0.01, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 1.0))
PAPER_ANCHOR_SIZE = 8  # K under a loss without anchors


class DistributionMonitor(StepCallback):
    """Logs `support/…` at the policy that sampled the tokens.

    For tokens of correct and of incorrect completions separately: support coverage J = Σ_{k∈T_K} π(k), entropy and
    max-prob. For tokens of incorrect completions: p10, p50 and p90 of r_anchor and Z_ref. Under APO also their
    saturated share (r_anchor > κ), and the distribution of the pull over buckets of π_ref(y).

    The loss defines the anchor set S (with its K), κ and the pulled tokens; under a loss without anchors S is the
    paper's. Tokens with a non-finite value are left out and counted in `support/num_nonfinite`.

    Source: *Anchored Policy Optimization*, the definitions of J_support, Z_ref and r_anchor.

    Args:
        anchor_size: K of the coverage J, and of S under a loss without anchors. None: the loss's own, or the paper's 8.
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
        own_size = 0 if loss is None else loss.support_size
        self.apo = loss if isinstance(loss, APO) else None
        self.support_size = self.given_size or own_size or PAPER_ANCHOR_SIZE
        self.anchor_size = own_size or self.support_size
        self.needs = Needs(ref_logprobs=True, anchor_size=max(self.support_size, self.anchor_size))

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Measure this step's tokens of all ranks."""
        own = support_facts(
            step.tokens,
            self.anchor_size,
            support_size=self.support_size,
            exclude_sampled=self.apo is None or self.apo.exclude_sampled,
        )
        facts = join(from_all_ranks(own))
        finite = facts.select(facts.is_finite)
        metrics = {
            "support/num_tokens": float(len(finite.is_finite)),
            "support/num_nonfinite": float((~facts.is_finite).sum()),
        }
        incorrect = finite.select(~finite.is_correct)
        for verdict, chosen in (("correct", finite.select(finite.is_correct)), ("incorrect", incorrect)):
            if len(chosen.is_correct):
                for name in ("coverage", "entropy", "max_prob"):
                    metrics[f"support/{name}_{verdict}"] = float(getattr(chosen, name).mean())
        if len(incorrect.is_correct):
            metrics |= _quantiles(incorrect)
        if self.apo is not None:
            if len(incorrect.is_correct):
                saturated = incorrect.anchor_ratio > self.apo.saturated_above  # infinite where β = 0
                metrics["support/saturated_fraction"] = float(saturated.double().mean())
            metrics |= pull_shares(finite, self.apo)
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
    ref_prob: Float[Tensor, "rows"]
    """π_ref(y), the reference's probability of the sampled token."""
    advantages: Float[Tensor, "rows"]
    entropy: Float[Tensor, "rows"]
    max_prob: Float[Tensor, "rows"]

    def select(self, rows: Bool[Tensor, "rows"]) -> "SupportFacts":
        """The rows where `rows` is True."""
        return SupportFacts(*(values[rows] for values in self))


def join(parts: Sequence[SupportFacts]) -> SupportFacts:
    """The rows of all parts."""
    return SupportFacts(*map(torch.cat, zip(*parts, strict=True)))


def support_facts(
    tokens: StepTokens, anchor_size: int, *, support_size: int | None = None, exclude_sampled: bool = True
) -> SupportFacts:
    """The support of the reference at a rank's tokens; those on which the reference was not run are left out.

    `anchor_size` is K of the anchor set, `support_size` K of the coverage (None: the same).

    Raises:
        ConfigError: the step holds no reference statistics at all.
    """
    if tokens.anchor is None or tokens.ref_logprobs is None:
        raise ConfigError("the distribution monitor found no reference statistics in its step: use ~callbacks.monitor")
    support_size = support_size or anchor_size
    width = max(support_size, anchor_size)
    present = (tokens.anchor.token_ids[:, :width] >= 0).any(1).cpu()

    def rows(values: Tensor) -> Tensor:
        return values.detach().cpu()[present].double()

    ids = tokens.anchor.token_ids[:, :width].cpu()[present]
    logprobs = rows(tokens.anchor.logprobs[:, :width])
    ref_logprobs = rows(tokens.anchor.ref_logprobs[:, :width])
    members = anchor_set(ids, ref_logprobs, tokens.token_ids.cpu()[present], exclude_sampled=exclude_sampled)
    members[:, anchor_size:] = False
    values = {
        "coverage": logprobs.exp().where(ids >= 0, 0.0)[:, :support_size].sum(1),
        "anchor_ratio": anchor_log_ratio(logprobs, ref_logprobs, members).clamp(max=LOG_RATIO_LIMIT).exp(),
        "ref_anchor_mass": log_mass(ref_logprobs, members).exp(),
        "ref_prob": rows(tokens.ref_logprobs).exp(),
        "advantages": rows(tokens.advantages),
        "entropy": rows(tokens.entropy),
        "max_prob": rows(tokens.max_prob),
    }
    # A NaN log-prob belongs to no set, so its row could look finite.
    is_finite = ~(logprobs.isnan() | ref_logprobs.isnan()).any(1)
    is_finite &= torch.stack([value.isfinite() for value in values.values()]).all(0)
    return SupportFacts(is_correct=tokens.is_correct.cpu()[present], is_finite=is_finite, **values)


def pull_shares(facts: SupportFacts, apo: APO) -> dict[str, float]:
    """The distribution of APO's pull over buckets of π_ref(y); shares sum to 1. Empty where nothing is pulled.

        pull(t) ∝ |A|·r_anchor·(1 − Σ_S π)    on triggered tokens of r_anchor ≤ κ, where κ is finite

    Holds at the sampling policy (r = 1) and for equal token weights, so that β and w cancel.
    """
    if apo.saturated_above == np.inf:
        return {}
    anchor_mass = facts.anchor_ratio * facts.ref_anchor_mass
    pulled = apo.triggered(facts.advantages, facts.is_correct) & (facts.anchor_ratio <= apo.saturated_above)
    pull = (facts.advantages.abs() * facts.anchor_ratio * (1 - anchor_mass)).where(pulled, 0.0)
    total = pull.sum()
    if total == 0:
        return {}
    shares = {}
    for low, high in REF_PROB_BUCKETS:
        inside = (facts.ref_prob >= low) & ((facts.ref_prob < high) | (high == 1.0))
        shares[f"support/pull_share_{low:g}_to_{high:g}"] = float(pull[inside].sum() / total)
    return shares


def _quantiles(incorrect: SupportFacts) -> dict[str, float]:
    # numpy: torch.quantile refuses more than 2²⁴ values, which a large step has.
    return {
        f"support/{name}_{label}": float(np.quantile(getattr(incorrect, name).numpy(), share))
        for name in ("anchor_ratio", "ref_anchor_mass")
        for label, share in QUANTILES.items()
    }
