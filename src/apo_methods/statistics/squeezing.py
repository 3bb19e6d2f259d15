"""Where an update moves the probability that it takes from sampled tokens: pure functions."""

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def leaders(
    anchor_logprobs: Float[Tensor, "tokens anchors"], is_candidate: Bool[Tensor, "tokens anchors"]
) -> Int[Tensor, "tokens"]:
    """Slot of the likeliest candidate anchor, the first of equal ones; slot 0 if there is no candidate."""
    return anchor_logprobs.masked_fill(~is_candidate, -torch.inf).argmax(1)


def mass_of_parts(
    logprobs: Float[Tensor, "tokens"],
    anchor_logprobs: Float[Tensor, "tokens anchors"],
    is_candidate: Bool[Tensor, "tokens anchors"],
    leader: Int[Tensor, "tokens"],
) -> Float[Tensor, "tokens 4"]:
    """Probability of the sampled token, the leader, the other anchors and the tail, in float64; a row sums to 1.

    Log-probs are in nats. Candidates are anchors that exist and are not the sampled token. The leader is a slot of
    `leaders`, with a mass of 0 if it is no candidate.
    """
    sampled = logprobs.double().exp()
    anchors = anchor_logprobs.double().exp().masked_fill(~is_candidate, 0.0)
    of_leader = anchors.gather(1, leader[:, None])[:, 0]
    others = anchors.sum(1) - of_leader
    return torch.stack([sampled, of_leader, others, 1 - sampled - of_leader - others], dim=1)


def squeeze_sums(before: Float[Tensor, "tokens 4"], after: Float[Tensor, "tokens 4"]) -> dict[str, float]:
    """Sums over tokens that determine every share, from their `mass_of_parts` before and after an update.

    Returns:
        `num_fell`, tokens with Δ_y < 0; `num_rose`, with Δ_y ≥ 0; `num_nonfinite`, left out because a probability was
        not finite. Over the tokens that fell: `lost`, Σ(−Δ_y); `leader`, `anchors` (without the leader) and `tail`,
        Σ Δ of each part; `proportional`, Σ (−Δ_y)·π_leader/(1 − π_y), the leader's gain if the mass were divided in
        proportion; `num_tail_fell`, tokens with Δ_tail < 0.
    """
    finite = (before.isfinite() & after.isfinite()).all(1)
    before, after = before[finite], after[finite]
    fell = (after - before)[:, 0] < 0
    change, before = (after - before)[fell], before[fell]
    rest = before[:, 1:].sum(1)
    in_proportion = torch.where(rest > 0, -change[:, 0] * before[:, 1] / rest, 0.0)
    sampled, leader, anchors, tail = change.sum(0).tolist()
    return {
        "num_fell": float(fell.sum()),
        "num_rose": float((~fell).sum()),
        "num_nonfinite": float((~finite).sum()),
        "lost": -sampled,
        "leader": leader,
        "anchors": anchors,
        "tail": tail,
        "proportional": float(in_proportion.sum()),
        "num_tail_fell": float((change[:, 3] < 0).sum()),
    }


def total(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The `squeeze_sums` of all ranks together."""
    return {name: math.fsum(part[name] for part in parts) for name in parts[0]}


def squeeze_shares(sums: Mapping[str, float]) -> dict[str, float]:
    """The share of the lost probability that each part took, over tokens whose own probability fell.

        share_c = Σ_t Δ_c / Σ_t (−Δ_y)                        c ∈ {leader, anchors, tail}; signed, they sum to 1
        index   = share_leader − Σ_t (−Δ_y)·π_leader/(1−π_y) / Σ_t (−Δ_y)
        tail_loses = share of the tokens with Δ_tail < 0

    The index is 0 if the lost mass is divided in proportion to the others' mass; above 0 the leader takes more. All are
    NaN if no token fell.

    Example:
        0.1 is lost; the leader takes 0.09, while its proportional share is 0.1·0.6/0.8 = 0.075.

        >>> before, after = torch.tensor([[0.2, 0.6, 0.1, 0.1]]), torch.tensor([[0.1, 0.69, 0.1, 0.11]])
        >>> {name: round(value, 6) for name, value in squeeze_shares(squeeze_sums(before, after)).items()}
        {'share_leader': 0.9, 'share_anchors': 0.0, 'share_tail': 0.1, 'index': 0.15, 'tail_loses': 0.0}
    """
    if sums["num_fell"] == 0:
        return dict.fromkeys(("share_leader", "share_anchors", "share_tail", "index", "tail_loses"), math.nan)
    lost = sums["lost"]
    return {
        **{f"share_{part}": sums[part] / lost for part in ("leader", "anchors", "tail")},
        "index": (sums["leader"] - sums["proportional"]) / lost,
        "tail_loses": sums["num_tail_fell"] / sums["num_fell"],
    }
