"""Hidden states → what the head says at each token, without ever holding the logits of all tokens.

Logits are made a tile at a time, some tokens by some of the vocabulary, z = h·Wᵀ/τ, reduced, and overwritten by their
own gradient, which has a closed form. Besides its inputs a call keeps a handful of numbers per token:

    u_v = z_v − max z,   s = Σ_v exp(u_v),   log p_v = u_v − log s,   H = −Σ_v p_v log p_v

`token_statistics` makes the logits again in its backward. `objective_sum` is told the loss of a token and has the
gradient ready when its forward returns: fewer operations, where memory for enough tokens at once is no matter.

Softmax state and gradient sums are float32 (float64 for float64 inputs), whatever the matrix products run in. Logits
of −∞ are legal: p·log p is 0 where p is 0.

    head.py         tiles of logits, and the gradient of h and W from tiles
    softmax.py      what is read off the tiles, and the gradient that goes back through it
    statistics.py   objective.py   reference.py   divergence.py      one question each
"""

from apo_lightning.logprobs.divergence import full_kl
from apo_lightning.logprobs.objective import Objective, objective_sum
from apo_lightning.logprobs.reference import reference_statistics
from apo_lightning.logprobs.statistics import token_statistics

__all__ = ["Objective", "full_kl", "objective_sum", "reference_statistics", "token_statistics"]
