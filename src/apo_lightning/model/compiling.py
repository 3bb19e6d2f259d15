"""Decoder layers through `torch.compile`, which fuses norms, rotation, activation, sums and casts.

Eager, each of these operations reads and writes all positions of a micro-batch. Attention keeps the kernels of
`model.attention`: it splits a layer into two graphs, which all layers share and which hold for any number of positions.

Departure: a compiled kernel does not round intermediate values to the compute dtype, and a forward with a gradient
keeps other values than one without. In bfloat16 their log-probs differ by rounding; eager ones are equal to the bit.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from transformers import AttentionInterface

from apo_lightning.model.attention import SHARED_PROMPTS, attend_registered
from apo_lightning.model.policy import Policy


def compile_layers(policies: Sequence[Policy]) -> None:
    """Compile the decoder layers of the policies with `compiles_layers`, each at its first run.

    Call it after sharding and adapters, whose hooks and matrices it keeps; parameters keep their names. A copy of a
    policy is not compiled with it. A second call changes nothing.

    Args:
        policies: their first passes are slow: up to a minute with a gradient, and again without one.
    """
    for policy in policies:
        if policy.compiles_layers:
            # Traced, its loops over prompts and completions would make a graph for each layout.
            AttentionInterface.register(SHARED_PROMPTS, torch.compiler.disable(attend_registered))
            for layer in cast(nn.ModuleList, policy.model.base_model.layers):
                layer.compile(dynamic=True)
