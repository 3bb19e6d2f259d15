"""Sampling one token per sequence from a given uniform number, so that the seed alone decides the sample."""

import numpy
import torch
from jaxtyping import Float, Int
from torch import Tensor

CACHED_PROBABILITIES = 2**18
"""Probabilities that the CPU processes at once: in float64 they fit a second-level cache."""


def sample_tokens(
    logits: Float[Tensor, "rows vocab"],
    temperatures: Float[Tensor, "rows"],
    uniforms: Float[Tensor, "rows"],
    top_p: Float[Tensor, "rows"] | None = None,
) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"], Float[Tensor, "rows"]]:
    """Sample one token per row by inverting the distribution function of softmax(logits / temperature).

        token = min {v : Σ_{w ≤ v} π(w) > u},   u in [0, 1)

    Args:
        logits: of any floating dtype; softmax is computed in float32, the cumulative sum in float64.
        temperatures: 0 takes the most likely token (the lowest id of equals) and reports softmax(logits).
        uniforms: u in float64; float32 has too few values to reach every token of a large vocabulary.
        top_p: restricts each row to its nucleus; None: all tokens.

    Returns:
        Token ids, log π of each, and the largest log π of its row [nats].

    Example:
        Probabilities 0.25 and 0.75: u = 0.2 falls into the first token, u = 0.3 into the second.

        >>> logits = torch.tensor([[0.25, 0.75]]).log().expand(2, 2)
        >>> uniforms = torch.tensor([0.2, 0.3], dtype=torch.float64)
        >>> tokens, logprobs, top = sample_tokens(logits, torch.ones(2), uniforms)
        >>> tokens.tolist(), logprobs.exp(), top.exp()
        ([0, 1], tensor([0.2500, 0.7500]), tensor([0.7500, 0.7500]))
    """
    rows, vocab = logits.shape
    rows_at_once = max(1, CACHED_PROBABILITIES // vocab) if logits.device.type == "cpu" else rows
    top_p = torch.ones_like(temperatures) if top_p is None else top_p
    parts = [
        _sample(logits[rows], temperatures[rows], uniforms[rows], top_p[rows])
        for rows in (slice(start, start + rows_at_once) for start in range(0, rows, rows_at_once))
    ]
    tokens, logprobs, top = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(logprobs), torch.cat(top)


def _sample(
    logits: Float[Tensor, "rows vocab"],
    temperatures: Float[Tensor, "rows"],
    uniforms: Float[Tensor, "rows"],
    top_p: Float[Tensor, "rows"],
) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"], Float[Tensor, "rows"]]:
    is_greedy = temperatures == 0
    logprobs = (logits.float() / torch.where(is_greedy, 1.0, temperatures)[:, None]).log_softmax(-1)
    if bool((top_p < 1).any()):
        logprobs = nucleus(logprobs, torch.where(is_greedy, 1.0, top_p))
    cumulative = logprobs.double().exp_()
    torch.cumsum(cumulative, -1, out=cumulative)
    threshold = uniforms * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
    tokens = tokens.clamp(max=logits.shape[-1] - 1)  # u·total can round up to the total
    if bool(is_greedy.any()):
        tokens = torch.where(is_greedy, logprobs.argmax(-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0], logprobs.amax(-1)


def nucleus(logprobs: Float[Tensor, "rows vocab"], top_p: Float[Tensor, "rows"]) -> Float[Tensor, "rows vocab"]:
    """Restrict each distribution to the smallest set of most likely tokens with mass ≥ `top_p`, and renormalise.

    Source: Holtzman et al. 2020, Eq. 2–3. Among equally likely tokens the lower ids stay; 1 leaves a row as it is.

    Example:
        >>> nucleus(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0.6])).exp()
        tensor([[0.6250, 0.3750, 0.0000]])
    """
    descending, order = logprobs.sort(dim=-1, descending=True, stable=True)
    mass_before = descending.double().exp().cumsum(-1) - descending.double().exp()
    outside = mass_before >= top_p[:, None]
    cut = logprobs.masked_fill(outside.gather(-1, order.argsort(-1)), -torch.inf)
    return torch.where((top_p < 1)[:, None], cut.log_softmax(-1), logprobs)


def uniforms(seed: int, count: int) -> Float[Tensor, "count"]:
    """The uniform numbers of one sample, one per token, in [0, 1), float64. They depend on the seed alone.

    torch's CPU generator would ignore the upper half of the seed.
    """
    return torch.from_numpy(numpy.random.default_rng(seed).random(count))
