"""Whole runs of `train.py` on a card whose numbers a CPU has, for `make gpu` where there is no GPU.

Lightning, an engine on the card, publishing, every diagnostic at every step, checkpoints.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import CONFIGS
from benchmarks.emulated import cardless
from benchmarks.gpu.rows import Row, attempt, judged
from benchmarks.gpu.training import COMMON, LEARNING_RATE, SAME

SMALL = (
    "model.compute_dtype=float32",
    "trainer.max_steps=2",
    "prompts_per_step=4",
    "prompts_per_minibatch=2",
    "callbacks=none",
)
"""In float32, so that both runs sample the same tokens; without export, which asks tensors for their memory."""
DUE = ("monitor", "squeezing_monitor", "reachability")
WAYS: Mapping[str, Sequence[str]] = {
    "every diagnostic": (
        "callbacks=[default,diagnostics]",
        "callbacks.export=null",
        *(f"callbacks.{name}.every_n_steps=1" for name in DUE),
    ),
    "LoRA": ("policy=lora",),
    "the engine's log-probs": ("algo=grpo_kl_error_only", "old_logprobs=rollout"),
}


def run_rows(device: str) -> Iterator[Row]:
    cardless.pretend()
    for name, overrides in WAYS.items():
        yield from attempt(name, way_rows(name, overrides))


def way_rows(name: str, overrides: Sequence[str]) -> Iterator[Row]:
    """The mean difference of a weight between the two runs, in learning rates."""
    from benchmarks.emulated.tensors import training_on_card, waits

    expected = trained(overrides)
    waits.clear()
    with training_on_card():
        found = trained(overrides)
    if not any(place.startswith("logprobs/") for place in waits):
        raise RuntimeError("the update was not on the card")
    pairs = list(zip(found, expected, strict=True))  # Lightning leaves them on the CPU
    difference = sum(float((one - two).abs().sum()) for one, two in pairs) / sum(two.numel() for _, two in pairs)
    moved = difference / LEARNING_RATE
    said = f"{moved:.1g} learning rates apart; the host waits {waits.total()} times"
    yield judged(f"run on an emulated card, {name}: weights", moved, said, at_most=SAME, waits=dict(waits))


def trained(overrides: Sequence[str]) -> list[Any]:
    """The weights that are trained, behind a run of two steps."""
    from hydra import compose, initialize_config_dir

    from apo_lightning.run import train

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", overrides=[*COMMON, *SMALL, *overrides])
    with tempfile.TemporaryDirectory() as folder:
        module = train(cfg, Path(folder) / "run")
    return [parameter.detach() for parameter in module.policy.parameters() if parameter.requires_grad]


SECTIONS = {"runs": run_rows}
