"""What does not fit is done again in smaller parts, with the same result; allocations here really fail."""

import logging

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from apo_lightning.errors import DoesNotFitError
from apo_lightning.model.policy import Policy
from apo_lightning.update.memory import MemoryBudget, is_out_of_memory
from running import SIGNAL, train_tiny, training_rows, weights

SETTINGS = ("algo=apo", "data.num_validation=2", "optimizer.eps=1", "optimizer.lr=1e-2")


def run(folder, *overrides):
    module = train_tiny(folder, *SIGNAL, *SETTINGS, *overrides)
    return weights(module), training_rows(folder), module


def fail() -> None:
    torch.empty(2**56)


@pytest.fixture
def positions(monkeypatch):
    """Lets passes without a gradient ("forward") and backwards fail above so many positions."""
    limits = {"forward": 10**9, "backward": 10**9}
    plain = Policy.run_backbone

    def limited(self, microbatch):
        num_positions = len(microbatch.input_ids)
        if not torch.is_grad_enabled() and num_positions > limits["forward"]:
            fail()
        if torch.is_grad_enabled() and num_positions > limits["backward"]:
            first, last = self.model.model.layers[0].mlp.up_proj.weight, self.model.model.layers[-1].mlp.up_proj.weight

            def out_of_memory(grad):
                hook.remove()
                assert last.grad is not None, "nothing to forget"
                fail()

            hook = first.register_hook(out_of_memory)
        return plain(self, microbatch)

    monkeypatch.setattr(Policy, "run_backbone", limited)
    return limits


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_batch_that_does_not_fit_is_done_again_and_trains_the_same(tmp_path, positions, direction, caplog):
    roomy, roomy_rows, _ = run(tmp_path / "roomy", "tokens_per_microbatch=256")
    positions[direction] = 128
    with caplog.at_level(logging.WARNING, logger="apo_lightning"):
        tight, tight_rows, module = run(tmp_path / "tight", "tokens_per_microbatch=256")
    assert module.memory.was_halved
    assert module.memory.tokens_per_microbatch == 128
    assert sum("continuing with 128" in record.message for record in caplog.records) == 1
    for name, weight in roomy.items():
        torch.testing.assert_close(tight[name], weight, atol=1e-6, rtol=1e-4)
    for one, two in zip(roomy_rows, tight_rows, strict=True):
        for name in ("train/loss", "train/grad_norm", "train/clip_fraction", "train/entropy", "apo/triggered_fraction"):
            assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-4, abs=1e-6), name


def test_what_does_not_fit_in_half_ends_the_run_with_a_budget_to_set():
    memory = MemoryBudget(256)
    seen = []

    def work():
        seen.append(memory.tokens_per_microbatch)
        fail()

    with pytest.raises(DoesNotFitError, match=r"tokens_per_microbatch=128, and it was halved before.*=64") as caught:
        memory.retry(work)
    assert seen == [256, 128]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("num_ranks", "forgets", "reason"),
    [(2, True, "2 ranks cannot"), (1, False, "FSDP2 of torch .* cannot repeat")],  # before torch 2.13 it does not
)
def test_what_cannot_be_repeated_ends_the_run(num_ranks, forgets, reason, monkeypatch):
    if not forgets:
        monkeypatch.delattr(FSDPModule, "reset_iter_state", raising=False)
    torch.distributed.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        with pytest.raises(DoesNotFitError, match=rf"{reason} .* tokens_per_microbatch=128"):
            MemoryBudget(256).retry(fail)
    finally:
        torch.distributed.destroy_process_group()


def test_other_errors_pass_through():
    def bug():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        MemoryBudget(256).retry(bug)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
