"""Two processes make the run that one makes, up to the order of summation."""

import pytest

from composing import run_train

pytestmark = pytest.mark.slow


# Sharded, the reference of a policy with adapters runs first on what the update must get a gradient for.
@pytest.mark.parametrize("policy", ["full", "lora"])
def test_ddp_and_fsdp_on_two_processes_log_what_one_process_logs(policy, tmp_path):
    options = (f"policy={policy}", "engine=transformers", "callbacks=none", "trainer.max_steps=2")
    alone, *others = (
        run_train(tmp_path / trainer, f"trainer={trainer}", *options) for trainer in ("cpu", "ddp_cpu2", "fsdp_cpu2")
    )
    for together in others:
        for one, two in zip(alone, together, strict=True):
            for name in ("train/reward", "train/loss", "train/grad_norm", "train/entropy", "apo/triggered_fraction"):
                assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-3, abs=1e-5), name
