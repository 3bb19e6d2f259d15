"""The sizes of the paper's run: Qwen2.5-Math-7B on eight GPUs, as configs/experiment/paper has it."""

from apo_plan.shapes import EngineSize, ModelShape, RunShape, shape_of
from benchmarks.shared.models import QWEN7B, config_of

# Bfloat16, checkpointing, 16384 tokens a micro-batch, 24 GiB of keys and values.
PAPER = RunShape(
    world_size=8,
    strategy="fsdp",
    is_cuda=True,
    compute_bytes=2,
    has_reference=True,
    gradient_checkpointing=True,
    microbatch_tokens=16384,
    max_model_len=2048,
    engine=EngineSize(name="vllm", num_sequences=256, num_forward_tokens=8192, kv_cache_bytes=24 * 2**30),
)


def qwen_math7b() -> ModelShape:
    """Counted without weights."""
    return shape_of(config_of(QWEN7B))
