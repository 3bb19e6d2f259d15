"""The language-model head and a loss on top, forward and backward: time, extra memory, error against float64.

    python -m benchmarks.performance.head [--size large] [--dtype bfloat16]

Ours next to materialised logits, Liger's chunked loss and TRL's kernel (their CPU paths: a check that we are not
slower where we can run, no claim about GPUs). Prints Markdown; a few minutes on one core.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apo_lightning.logprobs import DetachedHead, token_statistics
from benchmarks.shared.timing import (
    Action,
    count,
    extra_peak_bytes,
    has_peer,
    interleave,
    megabytes,
    pin_threads,
    print_header,
    print_table,
    ratio,
)

SIZES = {"default": (1024, 576, 49152), "large": (2048, 512, 128256)}
PULL = 0.1
NUM_SEQUENCES = 8


@dataclass(frozen=True)
class Case:
    """One input: T tokens in `NUM_SEQUENCES` sequences, hidden size D, vocabulary V, K anchors."""

    tokens: int
    hidden: int
    vocab: int
    anchors: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Inputs:
    hidden: Tensor
    weight: Tensor
    targets: Tensor
    anchor_ids: Tensor
    advantages: Tensor


@dataclass(frozen=True)
class Outputs:
    """What a variant says of each token; None where it says nothing."""

    logprobs: Tensor | None
    entropy: Tensor | None
    anchor_logprobs: Tensor | None = None


Variant = Callable[[Inputs], tuple[Tensor, Outputs]]
"""The scalar to be minimised, and the values."""


def make_inputs(case: Case, device: torch.device | None = None) -> Inputs:
    """Drawn on the device; None: on the CPU. Two kinds of device draw different numbers."""
    generator = torch.Generator(device or "cpu").manual_seed(0)
    options: dict[str, Any] = {"generator": generator, "device": generator.device}
    weight = torch.randn(case.vocab, case.hidden, **options) / case.hidden**0.5
    return Inputs(
        hidden=(2 * torch.randn(case.tokens, case.hidden, **options)).to(case.dtype).requires_grad_(),
        weight=weight.to(case.dtype).requires_grad_(),
        targets=torch.randint(case.vocab, (case.tokens,), **options),
        anchor_ids=torch.randint(case.vocab, (case.tokens, case.anchors), **options),
        advantages=torch.randn(NUM_SEQUENCES, **options).repeat_interleave(case.tokens // NUM_SEQUENCES),
    )


def loss(inputs: Inputs, outputs: Outputs, rows: slice = slice(None)) -> Tensor:
    """One value a token: the policy gradient of a first mini-batch (ratio 1); where A < 0, a pull on the anchors."""
    assert outputs.logprobs is not None
    advantages = inputs.advantages[rows].to(outputs.logprobs.dtype)
    per_token = -advantages * (outputs.logprobs - outputs.logprobs.detach()).exp()
    if outputs.anchor_logprobs is not None and outputs.anchor_logprobs.shape[1] > 0:
        per_token = per_token + PULL * advantages.clamp(max=0) * outputs.anchor_logprobs.logsumexp(1)
    return per_token / len(inputs.advantages)


def naive(inputs: Inputs) -> tuple[Tensor, Outputs]:
    logits = inputs.hidden @ inputs.weight.T
    logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(1)
    outputs = Outputs(logprobs.gather(1, inputs.targets[:, None])[:, 0], entropy, logprobs.gather(1, inputs.anchor_ids))
    return loss(inputs, outputs).sum(), outputs


def ours(inputs: Inputs) -> tuple[Tensor, Outputs]:
    """As in a training step: the gradient is taken while the logits of some tokens are there."""
    return chunk_by_chunk(DetachedHead(inputs.hidden, inputs.weight), inputs)


def chunk_by_chunk(head: DetachedHead, inputs: Inputs) -> tuple[Tensor, Outputs]:
    parts: list[Outputs] = []
    for tokens in head.chunks():
        found = head.statistics(tokens, inputs.targets[tokens], inputs.anchor_ids[tokens])
        parts.append(Outputs(found.logprobs, found.entropy.detach(), found.anchor_logprobs))
        head.add(loss(inputs, parts[-1], tokens).sum())
    columns = zip(*((part.logprobs, part.entropy, part.anchor_logprobs) for part in parts), strict=True)
    return head.total_loss(), Outputs(*(torch.cat([value.detach() for value in column]) for column in columns))


def ours_at_once(inputs: Inputs) -> tuple[Tensor, Outputs]:
    found = token_statistics(inputs.hidden, inputs.weight, inputs.targets, inputs.anchor_ids)
    outputs = Outputs(found.logprobs, found.entropy.detach(), found.anchor_logprobs)
    return loss(inputs, outputs).sum(), outputs


def liger(inputs: Inputs) -> tuple[Tensor, Outputs]:
    """Returns the loss alone, and knows no anchors."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss  # pyright: ignore[reportMissingImports]

    targets = inputs.targets.view(NUM_SEQUENCES, -1)
    module = LigerFusedLinearGRPOLoss(beta=0.0, compiled=False, use_ref_model=False, loss_type="bnpo")
    value, _ = module(
        inputs.hidden.view(*targets.shape, -1),
        inputs.weight,
        targets,
        torch.ones_like(targets),
        inputs.advantages.view_as(targets)[:, 0].contiguous(),
    )
    return value, Outputs(None, None)


def trl(inputs: Inputs) -> tuple[Tensor, Outputs]:
    """Log-probs and entropy; knows no anchors."""
    from trl.kernels import ChunkedLogProbFunction  # pyright: ignore[reportMissingImports]
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE  # pyright: ignore[reportMissingImports]

    logprobs, entropy, *_ = ChunkedLogProbFunction.apply(
        inputs.hidden, inputs.weight, None, inputs.targets, 1.0, _CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("entropy",)
    )
    outputs = Outputs(logprobs, entropy.detach())
    return loss(inputs, outputs).sum(), outputs


WITH_ANCHORS: dict[str, Variant] = {"naive": naive, "ours": ours, "ours, all tokens at once": ours_at_once}
PEERS: dict[str, tuple[str, Variant]] = {"Liger": ("liger-kernel", liger), "TRL": ("trl", trl)}


def run(variant: Variant, inputs: Inputs) -> tuple[list[Tensor], Outputs]:
    """Forward and backward: (∂h, ∂W), values."""
    inputs.hidden.grad = inputs.weight.grad = None
    value, outputs = variant(inputs)
    value.backward()
    assert inputs.hidden.grad is not None
    assert inputs.weight.grad is not None
    return [inputs.hidden.grad, inputs.weight.grad], outputs


def build(variant: Variant, case: Case) -> Action:
    """Ready to be measured; once run at a tiny size."""
    run(variant, make_inputs(Case(2 * NUM_SEQUENCES, 16, 64, min(case.anchors, 2), case.dtype)))
    inputs = make_inputs(case)
    return lambda: run(variant, inputs)[0]


def errors(variant: Variant, case: Case) -> tuple[str, str]:
    """Largest error of values and of gradients, against float64 on the same inputs, relative to the largest."""
    inputs = make_inputs(case)
    exact_inputs = Inputs(
        inputs.hidden.detach().double().requires_grad_(),
        inputs.weight.detach().double().requires_grad_(),
        inputs.targets,
        inputs.anchor_ids,
        inputs.advantages.double(),
    )
    gradients, outputs = run(variant, inputs)
    exact_gradients, exact = run(naive, exact_inputs)
    values = [
        relative_error(ours, theirs)
        for ours, theirs in (
            (outputs.logprobs, exact.logprobs),
            (outputs.entropy, exact.entropy),
            (outputs.anchor_logprobs, exact.anchor_logprobs),
        )
        if ours is not None and theirs is not None and ours.numel()
    ]
    worst = max(relative_error(*pair) for pair in zip(gradients, exact_gradients, strict=True))
    return f"{max(values):.0e}" if values else "—", f"{worst:.0e}"


def relative_error(value: Tensor, exact: Tensor) -> float:
    return float((value.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max())


def report(variants: dict[str, Variant], case: Case, rounds: int) -> None:
    actions = {name: build(variant, case) for name, variant in variants.items()}
    timings = interleave(actions, rounds)
    logits = case.tokens * case.vocab
    rows = []
    for name, variant in variants.items():
        counts = count(actions[name], [make_inputs(case).weight])
        rows.append(
            [
                name,
                *timings[name].cells(),
                "1" if name == "naive" else ratio(timings[name], timings["naive"]),
                megabytes(extra_peak_bytes(build, variant, case)),
                *errors(variant, case),
                f"{counts.flops / (logits * case.hidden):.1f}",
                f"{counts.largest_tensor / logits:.3f}",
            ]
        )
    columns = ["", "s, min", "s, median", "÷ naive", "extra peak MB", "value error", "gradient error"]
    print(f"T={case.tokens} D={case.hidden} V={case.vocab} K={case.anchors} {str(case.dtype).removeprefix('torch.')}\n")
    print_table([*columns, "FLOP/TVD", "largest tensor/TV"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="default", help="T, D and V together")
    for name, what in (("tokens", "T, a multiple of 8"), ("hidden", "D"), ("vocab", "V")):
        parser.add_argument(f"--{name}", type=int, help=f"{what}; overrides --size")
    parser.add_argument("--anchors", type=int, default=8, help="K")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    pin_threads(given.threads)
    sizes = zip((given.tokens, given.hidden, given.vocab), SIZES[given.size], strict=True)
    tokens, hidden, vocab = (chosen or preset for chosen, preset in sizes)
    if tokens % NUM_SEQUENCES or tokens == hidden:
        # with T = D the logits would have the shape of W's gradient, which the largest tensor leaves out
        parser.error(f"--tokens is {tokens}: give a multiple of {NUM_SEQUENCES} other than --hidden, {hidden}")
    dtype = getattr(torch, given.dtype)
    peers = {name: peer for name, peer in PEERS.items() if has_peer(peer[0])}
    print_header("Language-model head", *(package for package, _ in peers.values()))
    report(WITH_ANCHORS, Case(tokens, hidden, vocab, given.anchors, dtype), given.rounds)
    without_anchors = WITH_ANCHORS | {name: variant for name, (_, variant) in peers.items()}
    report(without_anchors, Case(tokens, hidden, vocab, 0, dtype), given.rounds)


if __name__ == "__main__":
    main()
