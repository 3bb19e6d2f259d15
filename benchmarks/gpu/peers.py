"""One update of a model in the shape of Qwen2.5-1.5B: ours, TRL's, TRL's with Liger on one device."""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from apo_lightning.types import Rollouts
from benchmarks.gpu.rows import Row, attempt, not_run
from benchmarks.gpu.update import GIB, ON_A_CPU
from benchmarks.performance.update import (
    Shape,
    build_setup,
    gradients,
    make_rollouts,
    only_minibatch,
    take_gradient,
    trl,
)
from benchmarks.shared.models import QWEN1_5B, config_of, random_model
from benchmarks.shared.timing import has_peer, interleave, waited_for

ROUNDS = 2
GROUP_SIZE = 8
"""Two prompts, one micro-batch each; all recompute their layers."""
SHAPES = {"cuda": Shape(512, 1024, 1024), "cpu": Shape(16, 8, 24)}
Action = Callable[[], object]


@dataclass(frozen=True)
class Peer:
    """A way of computing the same gradient; `needs` are the packages of another's."""

    name: str
    make: Callable[[PreTrainedModel, Rollouts, torch.device], Action]
    needs: tuple[str, ...] = ()


def ours(model: PreTrainedModel, rollouts: Rollouts, device: torch.device, *, is_compiled: bool) -> Action:
    """As a run's own."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    budget = len(rollouts.prompts[0].token_ids) + GROUP_SIZE * int(rollouts.lengths.max())
    setup = build_setup(model, rollouts, torch.bfloat16, device=device, tokens_per_microbatch=budget)
    setup.policy.compiles_layers = is_compiled
    setup.policy.compile_layers()
    plan, minibatch = only_minibatch(setup, rollouts)

    def action() -> object:
        model.zero_grad(set_to_none=True)
        return take_gradient(setup, plan, minibatch)

    return action


def theirs(model: PreTrainedModel, rollouts: Rollouts, device: torch.device, *, with_liger: bool) -> Action:
    """As `GRPOTrainer`'s own."""
    how = {"device": device, "completions_per_microbatch": GROUP_SIZE, "recomputes": True}
    return trl(model, rollouts, torch.bfloat16, with_liger=with_liger, **how)


PEERS = (
    Peer("ours, compiled layers", lambda *given: ours(*given, is_compiled=True)),
    Peer("ours, eager layers", lambda *given: ours(*given, is_compiled=False)),
    Peer("TRL", lambda *given: theirs(*given, with_liger=False), ("trl",)),
    Peer("TRL with Liger", lambda *given: theirs(*given, with_liger=True), ("trl", "liger-kernel")),
)


def peer_rows(kind: str) -> Iterator[Row]:
    """One after the other, each with a model of its own, of the same weights."""
    device, norms = torch.device(kind), {}
    for peer in PEERS:
        missing = [name for name in peer.needs if not has_peer(name)]
        if missing or ("liger-kernel" in peer.needs and kind == "cpu"):
            yield not_run(
                f"peers: {peer.name}", f"{missing[0]} is not installed" if missing else "its kernels need a GPU"
            )
            continue
        yield from attempt(f"peers: {peer.name}", peer_row(peer, device, norms))
        gc.collect()
        if kind == "cuda":
            torch.cuda.empty_cache()


def peer_row(peer: Peer, device: torch.device, norms: dict[str, float]) -> Iterator[Row]:
    """Seconds of forward, loss and backward, and the most memory; all must compute a gradient of the same norm."""
    kind = device.type
    fields = QWEN1_5B | (ON_A_CPU if kind == "cpu" else {})
    torch.manual_seed(0)
    model = random_model(config_of(fields), device).train()
    rollouts = make_rollouts(SHAPES[kind], fields["vocab_size"], 2, GROUP_SIZE)
    begun = time.perf_counter()
    action = peer.make(model, rollouts, device)
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats()
    timing = interleave({peer.name: waited_for(action, device)}, ROUNDS)[peer.name]
    seconds, tokens = timing.minimum, int(rollouts.lengths.sum())
    norms[peer.name] = float(torch.stack([gradient.float().norm() for gradient in gradients(model)]).norm())
    memory = f", {torch.cuda.max_memory_allocated() / GIB:.1f} GiB" if kind == "cuda" else ""
    apart = norms[peer.name] / norms[next(iter(norms))] - 1
    said = f"{1e3 * seconds:,.0f} ms, {tokens / seconds:,.0f} response tokens/s{memory}, norm {apart:+.1%}"
    figures = {"seconds": timing.seconds, "gradient_norm": norms[peer.name], "all_seconds": time.perf_counter() - begun}
    yield Row(check=f"peers: {peer.name}", result=said, figures=figures)


SECTIONS = {"peers": peer_rows}
