"""A sharded policy feeding one engine in each rank."""

import importlib.util
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from apo_lightning.rollout.weight_sync import logprob_gap, publish
from engine_bench import context, make_engine, reference_logprobs, tiny_llama
from engine_contract import request
from processes import in_a_group

VLLM = [
    pytest.mark.vllm,
    pytest.mark.slow(40),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def work(rank, folder, engine_name):
    os.environ["OMP_NUM_THREADS"] = "1"
    whole, policy = tiny_llama(tied=True), tiny_llama(tied=True)
    for layer in policy.model.layers:
        fully_shard(layer)
    fully_shard(policy)
    assert isinstance(policy.model.norm.weight, DTensor)
    environment = dict(os.environ)
    engine = make_engine(engine_name)
    engine.setup(context(folder, global_rank=rank, local_rank=rank, world_size=2))
    assert dict(os.environ) == environment
    publish(policy, engine, version=1)
    # Generating is not collective: each rank has a number of requests of its own.
    requests = [request((3 + rank, 4, 5), seed=10 * rank + i, max_new_tokens=3 + rank) for i in range(3 + 2 * rank)]
    for asked, completion in zip(requests, engine.generate(requests), strict=True):
        assert len(completion.token_ids) == asked.max_new_tokens
        expected = reference_logprobs(whole, asked, completion.token_ids)
        assert logprob_gap(torch.tensor(completion.logprobs), expected) < 1e-3
    engine.close()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == 3.0
    dist.barrier()  # a rank that leaves first can abort the other's last transfer


@pytest.mark.parametrize("engine_name", ["transformers", pytest.param("vllm", marks=VLLM)])
def test_each_rank_samples_from_the_whole_policy(engine_name, tmp_path):
    tiny_llama(tied=True).config.save_pretrained(tmp_path)
    in_a_group(work, tmp_path, engine_name)
