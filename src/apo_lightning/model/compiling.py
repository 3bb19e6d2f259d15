"""Decoder layers through `torch.compile`: norms, rotation, activation, sums and casts in few passes over memory.

Eager, each of these reads and writes all positions of a micro-batch once an operation. Attention keeps the kernels of
`model.attention`: it splits a layer in two graphs, which all layers share and which hold for any number of positions.

Departure: what a compiled kernel holds in registers is not rounded to the compute dtype in between, and a forward with
a gradient keeps other values than one without. In bfloat16 log-probs of the two differ by roundings, where eager ones
are equal to the bit.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn
from transformers import AttentionInterface

from apo_lightning.model.attention import SHARED_PROMPTS, attend_registered
from apo_lightning.model.policy import Policy


def compile_layers(policies: Sequence[Policy]) -> None:
    """Compile the decoder layers of those that ask for it, each when it first runs; parameters keep their names.

    Behind sharding and adapters, whose hooks and matrices it takes as they are. A copy of a policy is not compiled with
    it. Called again, it changes nothing.

    Args:
        policies: afterwards slow in their first passes: up to a minute for those with a gradient, and again for those
            without one.
    """
    for policy in policies:
        if policy.compiles_layers:
            # Traced, its loops over a micro-batch's prompts and completions would make a graph for each layout.
            AttentionInterface.register(SHARED_PROMPTS, torch.compiler.disable(attend_registered))
            for layer in cast(nn.ModuleList, policy.model.base_model.layers):
                layer.compile(dynamic=True)
