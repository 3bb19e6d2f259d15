"""Every run of the paper starts: as it is configured, on a random model, sharded over two processes.

On the random model the runs of one method are the same run; one of the three is made.
"""

import math

import pytest
from omegaconf import DictConfig, OmegaConf

from benchmarks.shared.runs import write_stub
from composing import PAPER, composed
from running import train_on_two_ranks, training_rows

pytestmark = [pytest.mark.long, pytest.mark.slow(40)]
OPTIONS = (
    "trainer=fsdp_cpu2",
    "model=tiny",
    "engine=transformers",
    # A model whose answers are noise gets no sum right, and an update without a reward moves nothing.
    "reward=callable",
    "data.max_completion_tokens=12",
    # Held-out problems are on the hub.
    "data.validation=null",
    "prompts_per_step=8",
    "prompts_per_minibatch=4",
    "callbacks=quiet",
    "trainer.max_steps=2",
)


def configured(name: str, *overrides: str) -> DictConfig:
    return composed(f"experiment=paper/{name}", *OPTIONS, "reward.function._target_=rewarding.even_start", *overrides)


def different_runs() -> list[str]:
    """The first name of each configuration, but of each number that is varied its first value alone."""
    first: dict[str, str] = {}
    varied: set[str] = set()
    for name in sorted(PAPER):
        number = name.rpartition("_")[0] if name.startswith("sensitivity_") else name
        if number not in varied:
            varied.add(number)
            first.setdefault(OmegaConf.to_yaml(configured(name)), name)
    return list(first.values())


def test_every_run_of_the_paper_starts_and_learns_on_two_sharding_processes(tmp_path):
    write_stub(tmp_path / "stub.jsonl")
    names = different_runs()
    assert len(names) == 8
    # In one process a rank: a fresh one for each would import for minutes.
    train_on_two_ranks(*((configured(name, f"data.path={tmp_path / 'stub.jsonl'}"), tmp_path / name) for name in names))
    for name in names:
        rows = training_rows(tmp_path / name)
        assert [row["step"] for row in rows] == ["1", "2"], name
        assert all(math.isfinite(float(row["train/loss"])) for row in rows), name
        assert all(float(row["train/grad_norm"]) > 0 for row in rows), name
        assert (tmp_path / name / "checkpoints" / "step_000002" / "checkpoint.json").is_file(), name
