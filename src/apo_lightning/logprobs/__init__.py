"""Token statistics of a language-model head, without the logits of all tokens in memory.

Logits z = h·Wᵀ/τ are computed one tile (some tokens × a part of the vocabulary) at a time, reduced, and overwritten by
their own gradient, which has a closed form. Besides its inputs a call keeps a few numbers per token:

    u_v = z_v − max z,   s = Σ_v exp(u_v),   log p_v = u_v − log s,   H = −Σ_v p_v log p_v

The update uses `DetachedHead`, which takes the loss of a chunk of tokens and its gradient while the chunk's logits are
still in memory. Statistics of more tokens keep as many logits as fit and recompute the others in the backward.

Softmax state and gradient sums are float32 (float64 for float64 inputs), whatever the dtype of the matrix products.
Logits of −∞ are legal: p·log p is 0 where p is 0.

    head.py         tiles of logits; logits that are kept for the backward, and sums of the gradients of h and W
    softmax.py      softmax state over tiles, and the gradient of the logits
    statistics.py   log-probs and entropy of the policy, also of one micro-batch a chunk of tokens at a time
    reference.py    log-probs and top K of the reference, and the exact KL divergence from it
"""

from apo_lightning.logprobs.reference import full_kl, reference_statistics
from apo_lightning.logprobs.statistics import DetachedHead, token_statistics

__all__ = ["DetachedHead", "full_kl", "reference_statistics", "token_statistics"]
