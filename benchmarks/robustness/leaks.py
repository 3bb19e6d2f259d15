"""Whether an engine's memory grows over many rounds of weight sync and generation.

    python -m benchmarks.robustness.leaks [--rounds 200] [--model tiny]

Each engine runs in a fresh process. A round publishes the policy, samples 16 completions and, as training does, lets
the engine sleep. Resident memory after the last round against that after a warm-up of a quarter of the rounds. Prints
one Markdown table. Takes four minutes of one core; needs the extra `cpu` or `vllm`.
"""

import argparse
import gc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.start import start_engine
from apo_lightning.rollout.weight_sync import publish
from apo_lightning.types import GenerationRequest
from benchmarks import CONFIGS
from benchmarks.shared.timing import megabytes, pin_threads, print_header, print_table, resident_bytes, verdict

BAR = 1.02


def main() -> None:
    parser = argparse.ArgumentParser(description="Growth of resident memory, as Markdown.")
    parser.add_argument("--rounds", type=int, default=200, help="of sync and generation")
    parser.add_argument("--model", default="tiny", help="a name in configs/model")
    arguments = parser.parse_args()
    pin_threads(1)
    print_header(f"Memory over {arguments.rounds} rounds of sync and generation, {arguments.model}", "transformers")
    rows = []
    for engine in ("transformers", "vllm"):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            resident = fresh.submit(measure, engine, arguments.model, arguments.rounds).result()
        warm, half, last = (resident[i] for i in (len(resident) // 4, len(resident) // 2, -1))
        growth = last / warm
        rows.append([engine, *(megabytes(b) for b in (warm, half, last)), f"{growth:.4f}", verdict(growth, BAR)])
    print_table(["engine", "warm [MB]", "half-way [MB]", "at the end [MB]", "growth", "below 2 %"], rows)


def measure(engine_name: str, model: str, rounds: int) -> list[int]:
    """Resident memory after each round [bytes]."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", overrides=[f"model={model}", f"engine={engine_name}", "model.compute_dtype=float32"])
    spec: PolicySpec = instantiate(cfg.model, _convert_="all")
    engine: RolloutEngine = instantiate(cfg.engine)
    device = torch.device("cpu")
    policy = Policy(spec.load_model(seed=0), spec.load_tokenizer(), torch.float32)
    start_engine(engine, policy, max_model_len=64, device=device, seed=0)
    resident = []
    for version in range(rounds):
        engine.wake()
        publish(policy.model, engine, version)
        engine.generate([request(version, i) for i in range(16)])
        engine.sleep()
        gc.collect()
        resident.append(resident_bytes("VmRSS"))
    engine.close()
    return resident


def request(version: int, i: int) -> GenerationRequest:
    """Prompts of sixteen lengths, and another sample of each in every round."""
    return GenerationRequest(prompt_token_ids=tuple(range(5, 15 + i)), seed=100 * version + i, max_new_tokens=16)


if __name__ == "__main__":
    main()
