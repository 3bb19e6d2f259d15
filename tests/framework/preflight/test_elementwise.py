"""The bytes between the products of a layer, held against the kernels that a real one launches."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from apo_lightning.preflight.elementwise import COMPILED, EAGER, NORMS_APART, between_bytes
from apo_lightning.preflight.memory_shapes import shape_of
from benchmarks.shared.models import LLAMA3B, config_of
from composing import ROOT
from paper_sizes import PAPER, qwen_math7b

# Width, inner width and heads of a layer.
SIZES = {"small": (512, 512, 8), "wide": (1024, 512, 8), "inner": (512, 2048, 8), "heads": (512, 512, 32)}
NOTHING_MOVED = ("empty", "empty_like", "empty_strided", "detach")


class Kernels(TorchDispatchMode):
    """Adds up what every kernel reads and writes, but for products, attention and views."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in NOTHING_MOVED or name in ("mm", "addmm", "bmm") or "attention" in name:
            return out
        read, written = ([t for t in tree_leaves(side) if isinstance(t, torch.Tensor)] for side in (args, out))
        places = {tensor.untyped_storage().data_ptr() for tensor in read}
        if not any(tensor.untyped_storage().data_ptr() in places for tensor in written):
            self.num_bytes += sum(tensor.nbytes for tensor in (*read, *written))
        return out


def moved(config: LlamaConfig, num_positions: int, *, is_autocast: bool) -> tuple[int, int]:
    """(forward, backward) [bytes]."""
    layer = LlamaDecoderLayer(config, 0)
    hidden = torch.randn(1, num_positions, config.hidden_size, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        tables = LlamaRotaryEmbedding(config)(hidden, torch.arange(num_positions)[None])
        with Kernels() as forward:
            output = layer(hidden, position_embeddings=tables, attention_mask=None)
    gradient = torch.ones_like(output)
    with Kernels() as backward:
        output.backward(gradient)
    return forward.num_bytes, backward.num_bytes


@pytest.mark.parametrize("compute_bytes", EAGER)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_kernels_of_a_layer_move_what_is_counted(sizes, compute_bytes):
    width, inner, heads = SIZES[sizes]
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        head_dim=32,
        num_hidden_layers=1,
        vocab_size=8,
    )
    config._attn_implementation = "sdpa"
    model = shape_of(config)
    # of twice the positions: what is done once, such as casts of weights, is not counted here
    once, twice = (moved(config, n, is_autocast=compute_bytes == 2) for n in (64, 128))
    for traffic, fewer, more in zip(EAGER[compute_bytes], once, twice, strict=True):
        assert traffic.of(model) == pytest.approx((more - fewer) / 64, rel=0.03)


@pytest.mark.parametrize("compute_bytes", EAGER)
def test_compiled_layers_move_less_than_eager_ones_and_no_less_than_what_comes_in_and_goes_out(compute_bytes):
    run = replace(PAPER, compute_bytes=compute_bytes)
    for eager, compiled in zip(EAGER[compute_bytes], COMPILED[compute_bytes], strict=True):
        # The residual stream, always float32, is read and written twice; the MLP's product reads two, writes one.
        assert 2 * (4 + 4) <= compiled.hidden < eager.hidden
        assert 3 * compute_bytes <= compiled.mlp < eager.mlp
        assert compiled.heads < eager.heads
    less, more = (
        between_bytes(qwen_math7b(), r, forwards=1, backwards=1) for r in (replace(run, compiles_layers=True), run)
    )
    assert 0.3 < less / more < 0.6


# D = 3584, F = 18944, 28 heads of 128 and 4 of keys, 28 layers; attention reads and writes 4 · 32 · 128 in 2 bytes.
# Forward 40 D + 6 F + 12 · 32 · 128, backward 42 D + 10 F + 14 · 32 · 128
@pytest.mark.parametrize(("microbatch_tokens", "hidden"), [(7168, 82), (7167, 100)])
def test_few_positions_have_norms_apart(microbatch_tokens, hidden):
    run = replace(PAPER, microbatch_tokens=microbatch_tokens, compiles_layers=True)
    expected = 28 * (hidden * 3584 + 16 * 18944 + (26 + 12) * 32 * 128)
    assert between_bytes(qwen_math7b(), run, forwards=1, backwards=1) == expected


FOR_A_GPU = """
from benchmarks.emulated import cardless
cardless.pretend()
from benchmarks.preflight.compiled_traffic import per_position
print(per_position((3072, 8192, 24, 8, 128), (512, 1024), "bfloat16", "cuda", with_gradient=True))
"""


@pytest.mark.slow
def test_the_kernels_that_are_written_for_a_gpu_move_what_is_counted():
    command = [sys.executable, "-c", FOR_A_GPU]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    model = shape_of(config_of(LLAMA3B))
    counted = sum(traffic.of(model) for traffic in COMPILED[2]) + NORMS_APART[2] * model.hidden_size
    assert float(done.stdout) == pytest.approx(counted, rel=0.02)
