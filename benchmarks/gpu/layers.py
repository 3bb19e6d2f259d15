"""Compiled decoder layers, for `make gpu`: gradients against eager ones, and how often they are compiled."""

import copy
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import character_tokenizer
from benchmarks.gpu.kernels import LARGEST_ERROR, LONGEST, NUM_LAYOUTS, graph_row, graphs_so_far, refuse_eager
from benchmarks.gpu.rows import Row, attempt, judged
from benchmarks.performance.head import relative_error
from benchmarks.shared.models import QWEN7B, SMOLLM2, config_of, random_model

FEWER = {"num_hidden_layers": 2, "vocab_size": 512}
MODELS = {"cuda": {"llama": SMOLLM2, "qwen2": QWEN7B}, "cpu": {"llama": SMOLLM2}}
"""One without biases and one with; two layers of each."""


def microbatch_of(draw: random.Random, longest: int, device: torch.device) -> Microbatch:
    def tokens() -> tuple[int, ...]:
        return tuple(draw.randrange(FEWER["vocab_size"]) for _ in range(draw.randint(1, longest)))

    owners = [0, 0, 0, 1, 1]
    sequences = PackedSequences(prompts=[tokens(), tokens()], completions=[tokens() for _ in owners], owners=owners)
    (microbatch,) = sequences.microbatches(range(len(owners)), 2**20, device)
    return microbatch


def gradients(policy: Policy, microbatch: Microbatch) -> list[Tensor]:
    """Of a sum over the hidden states that the head would read, weighted at random."""
    policy.zero_grad(set_to_none=True)
    hidden = policy.hidden_states(microbatch)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)).to(hidden)
    (hidden * weights).sum().backward()
    return [p.grad for p in policy.parameters() if p.grad is not None]


def worst(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    return max(relative_error(one, two) for one, two in zip(found, exact, strict=True))


def layer_rows(kind: str) -> Iterator[Row]:
    device = torch.device(kind)
    for dtype in (torch.bfloat16, torch.float32):
        for model in MODELS[kind]:
            refuse_eager()
            name = f"compiled layers, {model}, {str(dtype).removeprefix('torch.')}"
            yield from attempt(name, model_rows(name, model, dtype, device))


def model_rows(name: str, model: str, dtype: torch.dtype, device: torch.device) -> Iterator[Row]:
    """The error of both ways against float32, and graphs over layouts, with and without a gradient."""
    fields = MODELS[device.type][model]
    whole = random_model(config_of(fields | FEWER), device).train()
    eager = Policy(whole, character_tokenizer(), dtype)
    compiled = Policy(copy.deepcopy(whole), character_tokenizer(), dtype, compiles_layers=True)
    compiled.compile_layers()
    draw, longest = random.Random(0), LONGEST[device.type]
    microbatch = microbatch_of(draw, longest, device)
    exact = gradients(Policy(copy.deepcopy(whole), character_tokenizer(), torch.float32), microbatch)
    counts = [graphs_so_far()]
    error, eager_error = worst(gradients(compiled, microbatch), exact), worst(gradients(eager, microbatch), exact)
    said = f"{error:.1e} (eager {eager_error:.1e})"
    yield judged(f"{name}: largest error of a gradient", error, said, at_most=LARGEST_ERROR[dtype], eager=eager_error)
    for _ in range(NUM_LAYOUTS):
        another = microbatch_of(draw, longest, device)
        gradients(compiled, another)
        with torch.no_grad():
            compiled.hidden_states(another)
        counts.append(graphs_so_far())
    yield graph_row(f"{name}: graphs over {NUM_LAYOUTS} layouts", counts)


SECTIONS = {"layers": layer_rows}
