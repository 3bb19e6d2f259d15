"""Hidden states → what the head says at each token, without ever holding the logits of all tokens.

Logits are made a tile at a time, some tokens by some of the vocabulary, z = h·Wᵀ/τ, reduced, and overwritten by their
own gradient, which has a closed form. Besides its inputs a call keeps a handful of numbers per token:

    u_v = z_v − max z,   s = Σ_v exp(u_v),   log p_v = u_v − log s,   H = −Σ_v p_v log p_v

`DetachedHead` is how the update uses it: the loss of a chunk of tokens is asked for, and its gradient taken, while the
chunk's logits are still there. Statistics of more tokens than that hold what there is room for, and make the rest of
the logits again in their backward.

Softmax state and gradient sums are float32 (float64 for float64 inputs), whatever the matrix products run in. Logits
of −∞ are legal: p·log p is 0 where p is 0.

    head.py         tiles of logits, and the gradient of h and W from tiles
    softmax.py      what is read off the tiles, and the gradient that goes back through it
    workspace.py    what is held between forward and backward
    statistics.py   reference.py   divergence.py      one question each
    detached.py     a micro-batch's chunks, and their gradient in one piece
"""

from apo_lightning.logprobs.detached import DetachedHead
from apo_lightning.logprobs.divergence import full_kl
from apo_lightning.logprobs.reference import reference_statistics
from apo_lightning.logprobs.statistics import token_statistics

__all__ = ["DetachedHead", "full_kl", "reference_statistics", "token_statistics"]
