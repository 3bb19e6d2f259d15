"""What one rank holds when the policy is sharded, against one process that holds it all.

    python -m benchmarks.performance.sharding [--model smollm2_135m]

One step of `train.py` under `trainer=cpu` and under `trainer=fsdp_cpu2`, with APO and so with a reference. Bytes of
tensors are summed over a rank's own shards, after the optimizer's step and before the gradient is dropped; the
process's memory is the kernel's account. Prints one Markdown table. Takes two minutes of one core.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from benchmarks import ROOT
from benchmarks.shared.timing import megabytes, print_header, print_table, resident_bytes, verdict

TENSORS = ("weights", "gradients", "optimizer state", "reference")
PROCESS = ("peak while loading", "peak", "proportional set at the end")
BAR = 0.505
"""A rank's part of what one process holds; the odd row of a matrix is someone's."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Memory of a rank, as Markdown.")
    parser.add_argument("--model", default="smollm2_135m", help="a name in configs/model")
    model = parser.parse_args().model
    print_header(f"Memory of a rank, {model} in float32", "lightning")
    alone, *ranks = measure(model, "cpu") + measure(model, "fsdp_cpu2")
    rows = []
    for name in (*TENSORS, *PROCESS):
        cells = [megabytes(found[name]) for found in (alone, *ranks)]
        part = max(found[name] for found in ranks) / alone[name]
        rows.append([name, *cells, f"{part:.3f}", verdict(part, BAR) if name in TENSORS else ""])
    print_table(["[MB]", "one process", "rank 0 of 2", "rank 1 of 2", "larger rank / one process", "half"], rows)


def measure(model: str, trainer: str) -> list[dict[str, float]]:
    """What each rank of one training step holds [bytes]."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "train.py",
            f"model={model}",
            "model.compute_dtype=float32",
            f"trainer={trainer}",
            "trainer.max_steps=1",
            "trainer.val_check_interval=null",
            "engine=transformers",
            "data.num_validation=2",
            "prompts_per_step=2",
            "prompts_per_minibatch=2",
            "group_size=2",
            "callbacks=none",
            "+callbacks.account._target_=benchmarks.performance.sharding.Account",
            f"+callbacks.account.folder={folder}",
            f"hydra.run.dir={folder}/run",
        ]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank*.json"))]


class Account(pl.Callback):
    """Writes down what this rank holds."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.bytes: dict[str, float] = {}

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bytes.setdefault("peak while loading", resident_bytes("VmHWM"))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        def after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            policy: Any = pl_module.policy
            reference: Any = pl_module.reference
            self.bytes["weights"] = local_bytes(policy.parameters())
            self.bytes["gradients"] = local_bytes(parameter.grad for parameter in policy.parameters())
            self.bytes["optimizer state"] = local_bytes(
                tensor for state in optimizer.state.values() for tensor in state.values()
            )
            self.bytes["reference"] = local_bytes(reference.policy.parameters())

        trainer.optimizers[0].register_step_post_hook(after_step)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bytes["peak"] = resident_bytes("VmHWM")
        self.bytes["proportional set at the end"] = proportional_bytes()
        (self.folder / f"rank{trainer.global_rank}.json").write_text(json.dumps(self.bytes))


def local_bytes(tensors: Iterable[Any]) -> int:
    """Of this rank's own shards, or of whole tensors."""
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.nbytes for tensor in local if isinstance(tensor, Tensor))


def proportional_bytes() -> int:
    """Resident memory of this process, pages shared with others counted in parts."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
