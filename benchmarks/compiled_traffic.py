"""What compiled layers read and write between their products, as torch's compiler counts its kernels.

    python benchmarks/compiled_traffic.py [--dtype bfloat16]

One layer at several sizes and numbers of positions, solved for the bytes a position of each number of the residual
stream, of the MLP and of the heads: the constants `COMPILED` of `preflight/elementwise.py`. Two minutes a dtype; needs
a C++ compiler.
"""

import argparse
import logging
import warnings

import torch
from timing import print_header, print_table
from torch._inductor import config as inductor
from torch._inductor import metrics
from torch._inductor.scheduler import ExternKernelSchedulerNode
from transformers import AutoModelForCausalLM, LlamaConfig

from apo_lightning.model.compiling import compile_layers
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import character_tokenizer

SIZES = ((256, 256, 8), (512, 256, 8), (256, 1024, 8), (256, 256, 16))
"""Width, inner width and heads, of queries and as many of keys."""
HEAD_SIZE = 32
POSITIONS = (64, 128)
"""What is done once, such as casts of weights, is in both and falls out."""


def policy_of(width: int, inner: int, heads: int, dtype: torch.dtype) -> Policy:
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_SIZE,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    return Policy(model, character_tokenizer(), dtype, compiles_layers=True)


def moved(policy: Policy, num_positions: int, *, with_gradient: bool) -> int:
    """Bytes of all kernels but products."""
    torch.compiler.reset()
    metrics.reset()
    prompt, completion = (5,) * (num_positions // 2), (7,) * (num_positions // 2 + 1)
    sequences = PackedSequences(prompts=[prompt], completions=[completion], owners=[0])
    (microbatch,) = sequences.microbatches([0], 2**20, torch.device("cpu"))
    compile_layers([policy])
    for layer in policy.model.base_model.layers:
        layer.compile(dynamic=False)  # bytes of symbolic lengths cannot be added up
    with torch.set_grad_enabled(with_gradient):
        hidden = policy.hidden_states(microbatch)
        if with_gradient:
            hidden.sum().backward()
    kernels = [(node, 4 * words) for node, words in metrics.nodes_num_elem]
    return sum(num_bytes for node, num_bytes in kernels if not isinstance(node, ExternKernelSchedulerNode))


def per_position(sizes: tuple[int, int, int], dtype: torch.dtype, *, with_gradient: bool) -> float:
    policy = policy_of(*sizes, dtype)
    fewer, more = (moved(policy, n, with_gradient=with_gradient) for n in POSITIONS)
    return (more - fewer) / (POSITIONS[1] - POSITIONS[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16: autocast")
    dtype = getattr(torch, parser.parse_args().dtype)
    print_header(f"Bytes a position between the products of a compiled layer, {dtype}")
    warnings.filterwarnings("ignore", "dynamo_pgo")
    inductor.force_disable_caches = True  # what is found in a cache is not counted
    torch._logging.set_logs(inductor_metrics=True)
    logging.getLogger("torch._inductor").handlers.clear()  # counted where this is said to be logged
    numbers = torch.tensor(
        [[width, inner, 2 * heads * HEAD_SIZE] for width, inner, heads in SIZES], dtype=torch.float64
    )
    rows = []
    for name, with_gradient in (("forward without a gradient", False), ("forward and backward", True)):
        found = torch.tensor([per_position(s, dtype, with_gradient=with_gradient) for s in SIZES], dtype=torch.float64)
        coefficients = torch.linalg.lstsq(numbers, found[:, None]).solution[:, 0]
        error = float((numbers @ coefficients / found - 1).abs().max())
        rows.append([name, *(f"{c:.1f}" for c in coefficients.tolist()), f"{error:.1%}"])
    print_table(["", "hidden", "mlp", "heads", "largest error of the fit"], rows)


if __name__ == "__main__":
    main()
