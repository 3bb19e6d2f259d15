"""Gradients over ranks and micro-batches, and what an optimizer step needs where there was no backward before it."""

import lightning.pytorch as pl
import pytest
import torch
from hydra.utils import instantiate
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from apo_lightning.distributed.root_params import grad_sync, unsharded_root, zero_gradient
from apo_lightning.rollout.vllm_private import process_unchanged
from composing import composed


@pytest.fixture
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)


def test_a_forward_alone_does_not_keep_the_next_one_at_the_weights_before_the_step(one_process):
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    fully_shard(model, mesh=one_process, reshard_after_forward=False)
    optimizer = adamw(model)
    with torch.no_grad(), unsharded_root(model):
        model(torch.ones(1, 1))
        assert not isinstance(model.weight, DTensor)
    zero_gradient(model)
    optimizer.step()
    # w ← w·(1 − lr·decay)
    assert float(model(torch.ones(1, 1))) == pytest.approx(1 - 0.1 * 0.5)


class Accumulating(pl.LightningModule):
    """Two micro-batches under DDP, as the training loop runs them."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.linear = nn.Linear(1, 1, bias=False)
        self.num_reduced = 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

    def on_train_start(self):
        self.trainer.strategy.model.register_comm_hook(self, counted)

    def training_step(self, batch, batch_idx):
        for value, is_last in ((1.0, False), (10.0, True)):
            with grad_sync([self], self.trainer.strategy, enabled=is_last):
                self.manual_backward(self.linear(torch.full((1, 1), value)).sum())
            assert self.num_reduced == int(is_last)


def counted(module, bucket):
    module.num_reduced += 1
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def test_ddp_reduces_the_gradient_of_a_mini_batch_once():
    # with one process: what two make of it is seen in test_two_processes
    options = {"devices": 1, "logger": False, "max_epochs": 1, "enable_checkpointing": False}
    trainer = instantiate({**composed("trainer=ddp_cpu2").trainer, **options})
    module = Accumulating()
    with process_unchanged():  # Lightning's launcher leaves LOCAL_RANK there
        trainer.fit(module, torch.utils.data.DataLoader([0]))
        torch.distributed.destroy_process_group()
    assert module.num_reduced == 1
    assert float(module.linear.weight.grad) == 11.0
