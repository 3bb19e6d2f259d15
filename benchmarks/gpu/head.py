"""The head alone, forward, loss and backward, for `make gpu`: against the time that its products alone would take."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from apo_lightning.logprobs import DetachedHead
from benchmarks.gpu.rates import bfloat16_rate
from benchmarks.gpu.rows import Row, attempt, judged
from benchmarks.performance.head import Case, Inputs, Outputs, chunk_by_chunk, make_inputs, run
from benchmarks.shared.timing import interleave, waited_for

MOST_OVER_FLOOR = 1.25
ROUNDS = 5
ANCHORS = 8
# Tokens, hidden size and vocabulary: the heads of Qwen2.5-7B and of Llama-3.2-3B.
SIZES = {"cuda": ((8192, 3584, 152064), (8192, 3072, 128256)), "cpu": ((256, 96, 4096), (256, 64, 3072))}


def head_rows(kind: str) -> Iterator[Row]:
    device = torch.device(kind)
    rate = bfloat16_rate(device)
    for tokens, hidden, vocab in SIZES[kind]:
        name = f"head, T={tokens} D={hidden} V={vocab}"
        yield from attempt(name, head_row(name, Case(tokens, hidden, vocab, ANCHORS), rate, device))
        if kind == "cuda":
            torch.cuda.empty_cache()


def as_in_training(inputs: Inputs) -> tuple[Tensor, Outputs]:
    """Float32 weights and hidden states, products in bfloat16: autocast is on while the head is set up, as there."""
    with torch.autocast(inputs.hidden.device.type, dtype=torch.bfloat16):
        detached = DetachedHead(inputs.hidden, inputs.weight)
    return chunk_by_chunk(detached, inputs)


def head_row(name: str, case: Case, rate: float, device: torch.device) -> Iterator[Row]:
    """Seconds ÷ floor; the three products of T·V·D, with two operations each, are the floor."""
    inputs = make_inputs(case, device)
    action = waited_for(lambda: run(as_in_training, inputs), device)
    timing = interleave({name: action}, ROUNDS)[name]
    floor = 6 * case.tokens * case.hidden * case.vocab / rate
    figures = {"seconds": timing.seconds, "floor_seconds": floor, "extra_bytes": extra_bytes(action, inputs)}
    said = f"{timing.minimum / floor:.2f} ({1e3 * timing.minimum:.1f} of {1e3 * floor:.1f} ms)"
    bar = MOST_OVER_FLOOR if device.type == "cuda" else None
    yield judged(f"{name}: time ÷ its products'", timing.minimum / floor, said, at_most=bar, **figures)


def extra_bytes(action: Callable[[], None], inputs: Inputs) -> int | None:
    """The most that torch held beyond what was there before, the gradients among it; None without a GPU."""
    if not inputs.hidden.is_cuda:
        return None
    inputs.hidden.grad = inputs.weight.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    action()
    return torch.cuda.max_memory_allocated() - before


SECTIONS = {"head": head_rows}
