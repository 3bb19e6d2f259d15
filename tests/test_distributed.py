"""What an optimizer step needs where there was no backward before it."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from apo_lightning.distributed.ranks import zero_gradient
from apo_lightning.distributed.units import whole_root


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
    with torch.no_grad(), whole_root(model):
        model(torch.ones(1, 1))
        assert not isinstance(model.weight, DTensor)
    zero_gradient(model)
    optimizer.step()
    # w ← w·(1 − lr·decay)
    assert float(model(torch.ones(1, 1))) == pytest.approx(1 - 0.1 * 0.5)
