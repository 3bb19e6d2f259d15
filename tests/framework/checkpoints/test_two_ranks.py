"""Checkpoints of two processes: stopped and gone on from by both, read by one."""

import os
import shutil
import signal

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from apo_lightning.callbacks import StepCallback
from apo_lightning.checkpoints.folder import complete_checkpoints, require_seen_by_all
from apo_lightning.errors import ConfigError
from apo_lightning.run import export
from composing import composed
from processes import in_a_group
from running import run_train, start_launched, training_rows, without_clock

pytestmark = pytest.mark.slow(40)

SETTINGS = (
    *("callbacks=quiet", "data.max_completion_tokens=12", "data.num_validation=8", "group_size=8"),
    *("optimizer.lr=1e-3", "trainer.max_steps=3", "checkpoint.save_every=1", "reference.ema_tau=0.9"),
)


class StopAfterStep1(StepCallback):
    """Asks the process that started the other to stop."""

    def on_step(self, step):
        if step.step == 1 and os.environ.get("LOCAL_RANK", "0") == "0":
            os.kill(os.getpid(), signal.SIGTERM)


def comparable(row: dict[str, str]) -> dict[str, float]:
    return {key: float(value or "nan") for key, value in without_clock(row).items()}


def test_a_sharded_run_is_stopped_gone_on_from_and_read_by_one_process(tmp_path):
    whole, stopped, alone = tmp_path / "whole", tmp_path / "stopped", tmp_path / "alone"
    expected = run_train(whole, *SETTINGS, "trainer=fsdp_cpu2")

    callback = f"+callbacks.stop._target_={__name__}.StopAfterStep1"
    script = start_launched(stopped, *SETTINGS, "trainer=fsdp_cpu2", callback)
    assert script.wait() == [75], script.said
    assert "stopped by SIGTERM" in script.said
    for one, two in zip(expected, run_train(stopped, *SETTINGS, "trainer=fsdp_cpu2", "resume=auto"), strict=True):
        assert comparable(two) == pytest.approx(comparable(one), rel=1e-4, abs=1e-6, nan_ok=True)

    before = complete_checkpoints(whole / "checkpoints")[0][0]
    assert before.folder.name == "step_000002"
    shutil.copytree(before.folder, alone / "checkpoints" / "step_000002")
    (alone / "metrics.csv").write_bytes((whole / "metrics.csv").read_bytes())
    run_train(alone, *SETTINGS, "trainer=cpu", "resume=auto")
    one, two = (training_rows(folder)[-1] for folder in (whole, alone))
    for name in ("train/reward", "train/loss", "train/grad_norm", "train/entropy"):
        assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-3, abs=1e-5), name

    exported = export(composed(f"run={whole}", config_name="export"))
    models = [AutoModelForCausalLM.from_pretrained(path) for path in (exported, whole / "checkpoints" / "final")]
    pairs = zip(*(model.state_dict().items() for model in models), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)

    rounded = export(composed(f"run={whole}", f"to={tmp_path / 'rounded'}", "dtype=bfloat16", config_name="export"))
    model = AutoModelForCausalLM.from_pretrained(rounded)
    assert model.dtype == torch.bfloat16 == model.config.dtype
    pairs = zip(models[0].state_dict().items(), model.state_dict().items(), strict=True)
    assert all(a == b and torch.equal(x.bfloat16(), y) for (a, x), (b, y) in pairs)
    assert {path.name for path in rounded.iterdir()} == {path.name for path in exported.iterdir()}
    with pytest.raises(ConfigError, match="dtype is float8: choose float32 or bfloat16"):
        export(composed(f"run={whole}", "dtype=float8", config_name="export"))


def between_ranks(rank, folder):
    require_seen_by_all(folder / "checkpoints", rank)
    dist.barrier()  # the first rank takes its mark away last
    assert not list((folder / "checkpoints").iterdir())
    with pytest.raises(ConfigError, match=r"rank 1 does not see .*checkpoints_0.*hydra.run.dir|checkpoints_1"):
        require_seen_by_all(folder / f"checkpoints_{rank}", rank)
    dist.barrier()


def test_ranks_that_do_not_share_the_folder_of_checkpoints_are_refused(tmp_path):
    in_a_group(between_ranks, tmp_path)
