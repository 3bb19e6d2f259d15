"""Hidden states → what the head says at each token, without ever holding the logits of all tokens.

Logits are made for a few rows at a time, z = h·Wᵀ/τ, reduced, and thrown away; the backward makes them again and
writes the gradient in closed form. Besides its inputs a call keeps a handful of numbers per token:

    u_v = z_v − max z,   s = Σ_v exp(u_v),   log p_v = u_v − log s,   H = −Σ_v p_v log p_v

Softmax state and gradient sums are float32 (float64 for float64 inputs), whatever the matrix products run in. Logits
of −∞ are legal: p·log p is 0 where p is 0.
"""

from apo_lightning.logprobs.divergence import full_kl
from apo_lightning.logprobs.statistics import reference_statistics, token_statistics

__all__ = ["full_kl", "reference_statistics", "token_statistics"]
