"""Geometry of the terms of a loss: lengths, angles, cancellation, and the reliability of these."""

import math
from collections.abc import Sequence
from itertools import combinations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def geometry(
    products: Float[Tensor, "vectors vectors"], terms: Sequence[str], objectives: Sequence[str]
) -> dict[str, float]:
    """Geometry of g_a = −∇L_a and of the ascent directions ∇J of objectives, from their inner products.

        norm_a = ‖g_a‖,   cos_a_b,   share_a = ⟨g_a, g⟩/‖g‖²,   g = Σ_a g_a
        cancelled = 1 − ‖g‖/Σ_a ‖g_a‖,   cancelled_if_orthogonal = 1 − √(Σ_a ‖g_a‖²)/Σ_a ‖g_a‖
        align_a_j = cos(g_a, ∇J_j)

    Shares are signed and sum to 1. `cancelled` lies in [0, 1] and is 0 if all terms have one direction. Unrelated terms
    cancel too, so compare it with its value for orthogonal terms.

    Args:
        products: ⟨v_i, v_j⟩, the terms first.
        terms: their names.
        objectives: names of the other vectors.

    Returns:
        NaN for values that involve a norm of 0.

    Example:
        Two orthogonal terms of lengths 3 and 4: ‖g‖ = 5.

        >>> found = geometry(torch.tensor([[9.0, 0.0], [0.0, 16.0]]), ["push", "pull"], [])
        >>> found["cos_push_pull"], round(found["cancelled"], 6), found["share_push"]
        (0.0, 0.285714, 0.36)
    """
    matrix = products.double()
    norms = matrix.diagonal().clamp(min=0).sqrt().tolist()
    place = {name: i for i, name in enumerate([*terms, *objectives])}

    def cosine(a: str, b: str) -> float:
        i, j = place[a], place[b]
        return _ratio(float(matrix[i, j]), norms[i] * norms[j])

    of_terms, lengths = matrix[: len(terms), : len(terms)], norms[: len(terms)]
    total = float(of_terms.sum())
    return {
        **{f"norm_{a}": norms[place[a]] for a in terms},
        **{f"cos_{a}_{b}": cosine(a, b) for a, b in combinations(terms, 2)},
        **{f"share_{a}": _ratio(float(of_terms[place[a]].sum()), total) for a in terms},
        "cancelled": 1 - _ratio(math.sqrt(max(total, 0.0)), sum(lengths)),
        "cancelled_if_orthogonal": 1 - _ratio(math.hypot(*lengths), sum(lengths)),
        **{f"align_{a}_{j}": cosine(a, j) for a in terms for j in objectives},
    }


def split_half(
    first: Float[Tensor, "terms entries"], second: Float[Tensor, "terms entries"], terms: Sequence[str]
) -> dict[str, float]:
    """Agreement of two halves of the prompts, and cosines corrected for noise, which shrinks plain ones towards 0.

        reliability_a = cos(a₁, a₂),   steady_cos_a_b = ½(⟨a₁, b₂⟩ + ⟨a₂, b₁⟩)/√(⟨a₁, a₂⟩·⟨b₁, b₂⟩)

    A reliability near 0 means that too few tokens were measured to know the term's direction. The steady cosine is
    unbounded, and NaN unless both factors under the root are above 0.
    """
    across = (first.double() @ second.double().T).tolist()
    norms = [[float(row.double().norm()) for row in half] for half in (first, second)]
    found = {f"reliability_{a}": _ratio(across[i][i], norms[0][i] * norms[1][i]) for i, a in enumerate(terms)}
    for (i, a), (j, b) in combinations(enumerate(terms), 2):
        both = across[i][i] > 0 and across[j][j] > 0
        scale = math.sqrt(across[i][i] * across[j][j]) if both else 0.0
        found[f"steady_cos_{a}_{b}"] = _ratio((across[i][j] + across[j][i]) / 2, scale)
    return found


def logit_products(
    slopes: Float[Tensor, "vectors tokens picks"], probs: Float[Tensor, "tokens picks"]
) -> tuple[Float[Tensor, "vectors vectors tokens"], Float[Tensor, "tokens"]]:
    """⟨f_i, f_j⟩ of forces on one token's logits in closed form, and a bound on the error of Σ_v π².

        f = Σ_p s_p·(e_p − π),   ⟨f, f'⟩ = Σ_p s_p s'_p − S'·Σ_p s_p π_p − S·Σ_p s'_p π_p + S·S'·‖π‖²,   S = Σ_p s_p

    Only the picks of ‖π‖² are known: Σ_p π_p² ≤ ‖π‖² ≤ Σ_p π_p² + m², m = 1 − Σ_p π_p. The lower bound is used; the
    second result is m² in [0, 1].

    Args:
        slopes: s of each vector; a pick that occurs twice has its whole slope at one place.
        probs: π of the picks; 0 if a pick is absent, or at its second place.

    Example:
        The push on one of two tokens of probability ½: e − π = (½, −½).

        >>> products, gap = logit_products(torch.ones(1, 1, 2) * torch.tensor([1.0, 0.0]), torch.full((1, 2), 0.5))
        >>> products.item(), gap.item()
        (0.5, 0.0)
    """
    totals = slopes.sum(2)
    along = (slopes * probs).sum(2)
    squares = probs.square().sum(1)
    products = torch.einsum("atp,btp->abt", slopes, slopes)
    products = products - totals[None] * along[:, None] - totals[:, None] * along[None]
    return products + totals[:, None] * totals[None] * squares, (1 - probs.sum(1)).clamp(min=0).square()


def picks_of(
    token_ids: Int[Tensor, "tokens"],
    anchor_ids: Int[Tensor, "tokens anchors"],
    logprobs: Float[Tensor, "tokens"],
    anchor_logprobs: Float[Tensor, "tokens anchors"],
) -> tuple[Float[Tensor, "tokens picks"], Bool[Tensor, "tokens anchors"]]:
    """(probabilities of the sampled token and of the other anchors, which anchor is the sampled one)."""
    is_sampled = anchor_ids == token_ids[:, None]
    others = anchor_logprobs.exp().masked_fill(is_sampled | (anchor_ids < 0), 0.0)
    return torch.cat([logprobs.exp()[:, None], others], dim=1), is_sampled


def merged_slopes(
    slope: Float[Tensor, "tokens"],
    anchor_slopes: Float[Tensor, "tokens anchors"],
    is_sampled: Bool[Tensor, "tokens anchors"],
) -> Float[Tensor, "tokens picks"]:
    """Slopes by pick, with the whole slope of the sampled token at the first place."""
    own = slope + anchor_slopes.masked_fill(~is_sampled, 0.0).sum(1)
    return torch.cat([own[:, None], anchor_slopes.masked_fill(is_sampled, 0.0)], dim=1)


def count_sketch(parts: Sequence[Float[Tensor, "..."]], size: int, seed: int) -> Float[Tensor, "size"]:
    """A short vector that preserves inner products: each entry is added with a random sign at a random place.

    For unit vectors the error of an inner product has a standard deviation of about 1/√size. Vectors to compare need
    parts of the same shapes in the same order, and the same seed.

    Source: Charikar, Chen and Farach-Colton 2002, "Finding frequent items in data streams".
    """
    sketch = torch.zeros(size, dtype=torch.float64)
    for number, part in enumerate(parts):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        drawn = torch.randint(0, 2 * size, (part.numel(),), generator=generator)
        values = part.detach().flatten().double().cpu()
        sketch.index_add_(0, drawn // 2, torch.where(drawn % 2 == 0, values, -values))
    return sketch


def _ratio(value: float, scale: float) -> float:
    return value / scale if scale > 0 else math.nan
