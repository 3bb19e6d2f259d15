"""Where the policy's probability goes, seen from the reference: the quantities that APO is about, under any loss."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.callbacks.base import StepCallback, check_every_n_steps
from apo_lightning.errors import ConfigError
from apo_lightning.gathering import from_all_ranks
from apo_lightning.types import Needs, StepOutput, StepTokens

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
REF_PROB_BUCKETS = ((0.0, 0.01), (0.01, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 1.0))
MAX_LOG_RATIO = 20.0


class DistributionMonitor(StepCallback):
    """Logs `support/…` at the policy that sampled the tokens.

    Over tokens of correct and of incorrect completions separately: support coverage J = Σ_{k∈T_K} π(k), entropy and
    max-prob. Over tokens of incorrect ones: the p10, p50 and p90 of r_anchor and Z_ref, and the fraction whose push
    and pull have both vanished. Where the loss reports a `pull`: how it divides over buckets of π_ref(y).

    Tokens with a value that is not finite are left out and counted in `support/num_nonfinite`.

    Source: *Anchored Policy Optimization*, the definitions of J_support, Z_ref and r_anchor.

    Args:
        anchor_size: K, reference tokens that make the support T_K.
        every_n_steps: measure at the steps that this number divides; each costs a pass of reference and policy.
        saturated_above: the r_anchor beyond which APO's gradient is zero at r = 1: (λ − (1 − ε))/β, that is 2.5 at
            the paper's λ = 1.05, β = 0.1, ε = 0.2.
    """

    def __init__(self, anchor_size: int = 8, every_n_steps: int = 5, saturated_above: float = 2.5) -> None:
        if anchor_size < 1:
            raise ConfigError(f"callbacks.monitor.anchor_size is {anchor_size}: give 1 or more, or ~callbacks.monitor")
        self.every_n_steps = check_every_n_steps("monitor", every_n_steps)
        self.anchor_size = anchor_size
        self.saturated_above = saturated_above
        self.needs = Needs(ref_logprobs=True, anchor_size=anchor_size)

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Measure this step's tokens, those of all ranks together."""
        facts = join(from_all_ranks(support_facts(step.tokens, self.anchor_size)))
        finite = facts.select(facts.is_finite)
        metrics = {
            "support/num_tokens": float(len(finite.is_finite)),
            "support/num_nonfinite": float((~facts.is_finite).sum()),
        }
        metrics |= _split_by_verdict(finite)
        metrics |= _of_incorrect(finite.select(~finite.is_correct), self.saturated_above)
        if any(name.split("/")[-1] == "pull" for name in step.loss_metrics):
            metrics |= pull_shares(finite, self.saturated_above)
        return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportFacts:
    """One row per token on which the reference was run; on the CPU, in float64."""

    is_correct: Bool[Tensor, "rows"]
    is_finite: Bool[Tensor, "rows"]
    """False where any value of the row is NaN or infinite."""
    coverage: Float[Tensor, "rows"]
    """J = Σ_{k∈T_K} π(k), the sampled token included; in [0, 1]."""
    anchor_ratio: Float[Tensor, "rows"]
    """r_anchor; 0 where the anchor set is empty."""
    ref_anchor_mass: Float[Tensor, "rows"]
    """Z_ref"""
    ref_prob: Float[Tensor, "rows"]
    """π_ref(y)"""
    advantages: Float[Tensor, "rows"]
    entropy: Float[Tensor, "rows"]
    max_prob: Float[Tensor, "rows"]

    def select(self, rows: Bool[Tensor, "rows"]) -> "SupportFacts":
        """The rows where `rows` is True."""
        return SupportFacts(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def join(parts: Sequence[SupportFacts]) -> SupportFacts:
    """The rows of all parts."""
    return SupportFacts(
        **{field.name: torch.cat([getattr(part, field.name) for part in parts]) for field in fields(SupportFacts)}
    )


def support_facts(tokens: StepTokens, anchor_size: int) -> SupportFacts:
    """What the step's tokens say of the support; tokens on which the reference was not run are absent.

        S = {k ∈ T_K : k ≠ y, π_ref(k) > 0},   Z_ref = Σ_S π_ref(k),   r_anchor = Σ_S π(k) / Z_ref

    Raises:
        ConfigError: the step holds no reference statistics at all.
    """
    if tokens.anchor is None or tokens.ref_logprobs is None:
        raise ConfigError("the distribution monitor found no reference statistics in its step: use ~callbacks.monitor")
    present = (tokens.anchor.token_ids[:, :anchor_size] >= 0).any(1).cpu()

    def rows(values: Tensor) -> Tensor:
        return values.detach().cpu()[present].double()

    ids = tokens.anchor.token_ids[:, :anchor_size].cpu()[present]
    logprobs = rows(tokens.anchor.logprobs[:, :anchor_size])
    ref_logprobs = rows(tokens.anchor.ref_logprobs[:, :anchor_size])
    in_anchor = (ids >= 0) & (ids != tokens.token_ids.cpu()[present, None]) & (ref_logprobs != -torch.inf)
    ref_anchor_mass = ref_logprobs.exp().where(in_anchor, 0.0).sum(1)
    # Through logarithms, and without an epsilon: Z_ref is tiny on tokens that the reference is sure of.
    log_ratio = torch.logsumexp(logprobs.where(in_anchor, -torch.inf), 1) - torch.logsumexp(
        ref_logprobs.where(in_anchor, -torch.inf), 1
    )
    values = {
        "coverage": logprobs.exp().where(ids >= 0, 0.0).sum(1),
        "anchor_ratio": log_ratio.clamp(max=MAX_LOG_RATIO).exp().where(in_anchor.any(1), 0.0),
        "ref_anchor_mass": ref_anchor_mass,
        "ref_prob": rows(tokens.ref_logprobs).exp(),
        "advantages": rows(tokens.advantages),
        "entropy": rows(tokens.entropy),
        "max_prob": rows(tokens.max_prob),
    }
    is_finite = torch.stack([value.isfinite() for value in values.values()]).all(0)
    return SupportFacts(is_correct=tokens.is_correct.cpu()[present], is_finite=is_finite, **values)


def pull_shares(facts: SupportFacts, saturated_above: float) -> dict[str, float]:
    """How APO's pull divides over buckets of π_ref(y); the shares sum to 1. Empty where nothing is pulled.

        pull(t) ∝ |A|·r_anchor·(1 − Σ_S π)    where A < 0 and r_anchor ≤ `saturated_above`

    At the sampling policy (r = 1) and for equal token weights, so that β and w cancel.
    """
    anchor_mass = facts.anchor_ratio * facts.ref_anchor_mass
    pulled = (facts.advantages < 0) & (facts.anchor_ratio <= saturated_above)
    pull = (facts.advantages.abs() * facts.anchor_ratio * (1 - anchor_mass)).where(pulled, 0.0)
    total = pull.sum()
    if total == 0:
        return {}
    shares = {}
    for low, high in REF_PROB_BUCKETS:
        inside = (facts.ref_prob >= low) & ((facts.ref_prob < high) | (high == 1.0))
        shares[f"support/pull_share_{low:g}_to_{high:g}"] = float(pull[inside].sum() / total)
    return shares


def _split_by_verdict(facts: SupportFacts) -> dict[str, float]:
    metrics = {}
    for verdict, chosen in (("correct", facts.is_correct), ("incorrect", ~facts.is_correct)):
        if chosen.any():
            metrics[f"support/coverage_{verdict}"] = float(facts.coverage[chosen].mean())
            metrics[f"support/entropy_{verdict}"] = float(facts.entropy[chosen].mean())
            metrics[f"support/max_prob_{verdict}"] = float(facts.max_prob[chosen].mean())
    return metrics


def _of_incorrect(facts: SupportFacts, saturated_above: float) -> dict[str, float]:
    if len(facts.is_correct) == 0:
        return {}
    metrics = {"support/saturated_fraction": float((facts.anchor_ratio > saturated_above).double().mean())}
    for name, values in (("anchor_ratio", facts.anchor_ratio), ("ref_anchor_mass", facts.ref_anchor_mass)):
        # numpy: torch.quantile refuses more than 2²⁴ values, which a large step has.
        for label, value in zip(QUANTILES, np.quantile(values.numpy(), list(QUANTILES.values())), strict=True):
            metrics[f"support/{name}_{label}"] = float(value)
    return metrics
