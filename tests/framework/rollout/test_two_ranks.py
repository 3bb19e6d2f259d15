"""A sharded policy feeding one engine a rank."""

import importlib.util
import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from apo_lightning.errors import StaleWeightsError
from apo_lightning.rollout.tensor_parallel import SharedRequests
from apo_lightning.rollout.weight_sync import logprob_gap, publish
from engine_bench import context, make_engine, reference_logprobs, tiny_llama
from engine_contract import request
from processes import on_two_ranks

VLLM = [
    pytest.mark.vllm,
    pytest.mark.slow(40),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def work(rank, engine_name, folder):
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    whole, policy = tiny_llama(tied=True), tiny_llama(tied=True)
    for layer in policy.model.layers:
        fully_shard(layer)
    fully_shard(policy)
    assert isinstance(policy.model.norm.weight, DTensor)
    environment = dict(os.environ)
    engine = make_engine(engine_name.removesuffix(" together"))
    if engine_name == "vllm together":
        engine.tensor_parallel_size = 2
    engine.setup(context(folder, global_rank=rank, local_rank=rank, world_size=2))
    assert dict(os.environ) == environment
    publish(policy, engine, version=1)
    # a number of its own on each rank: generating is not collective, or, with one engine for both, shared out again;
    # the last request of each is the same
    requests = [request((3 + rank, 4, 5), seed=10 * rank + i, max_new_tokens=3 + rank) for i in range(3 + 2 * rank)]
    requests.append(request((7, 8), seed=5, max_new_tokens=4))
    finished = {}
    completions = engine.generate(requests, finished.__setitem__)
    assert [finished[i] for i in range(len(requests))] == completions
    for asked, completion in zip(requests, completions, strict=True):
        assert len(completion.token_ids) <= asked.max_new_tokens
        expected = reference_logprobs(whole, asked, completion.token_ids)
        assert logprob_gap(torch.tensor(completion.logprobs), expected) < 1e-3
    if engine_name == "vllm together":
        keys = ["", ""]
        dist.all_gather_object(keys, engine._llm.llm_engine.vllm_config.compute_hash())
        assert keys[0] == keys[1], "each rank would compile for itself at every start"
        with pytest.raises(OSError, match="rank 1 has enough"):
            engine.generate(requests, lambda *_: stop_on_the_second_rank(rank))
        assert engine.generate(requests) == completions
        # 64 sequences of 123 tokens, in a cache of 6,400; the engine is one, and counted once.
        engine.generate([request((3, 4, 5), seed=1000 * rank + i, max_new_tokens=120) for i in range(32)])
        assert (engine.num_preempted > 0) is (rank == 0)
    plant_stale_tensors(engine, policy)
    engine.close()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == 3.0
    dist.barrier()  # a rank that leaves first can abort the other's last transfer
    dist.destroy_process_group()


def stop_on_the_second_rank(rank):
    if rank == 1:
        raise OSError("rank 1 has enough")


class UnsendableError(Exception):
    """Cannot be copied: it is made from two parts, and remembers one."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def listen(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    group = dist.new_group(backend="gloo")
    shared = SharedRequests.gather([request(seed=10 * rank + i) for i in range(4)], group)
    for error, on_the_other in ((OSError("one and two"), OSError), (UnsendableError("one", "two"), RuntimeError)):
        told, forwards = [], []

        def on_finished(index, completion, error=error, told=told):
            told.append(index)
            if rank == 1 and len(told) == 2:
                raise error

        with pytest.raises(type(error) if rank == 1 else on_the_other, match="one and two"):
            sample_together(shared.listener(on_finished, group), group, forwards)
        assert (forwards, told) == ([0, 4, 1, 5], [0, 1])
    dist.barrier()
    dist.destroy_process_group()


def sample_together(listener, group, forwards):
    for index in (0, 4, 1, 5, 2, 6, 3, 7):
        dist.barrier(group)
        forwards.append(index)
        listener(index, None)


def test_ranks_that_share_an_engine_leave_it_together_when_one_must(tmp_path):
    on_two_ranks(listen, str(tmp_path))


def plant_stale_tensors(engine, policy):
    """Every rank sees it in its own slice."""
    sound = engine._load
    for version, kind in enumerate(("q_proj", "k_proj", "o_proj", "up_proj", "down_proj", "norm", "lm_head"), start=2):
        engine._load = lambda stream, kind=kind: sound((n, w + 1e-3 if kind in n else w) for n, w in stream)
        with pytest.raises(StaleWeightsError, match=kind):
            publish(policy, engine, version)
    engine._load = sound
    publish(policy, engine, version=99)


@pytest.mark.parametrize("engine_name", ["transformers", pytest.param("vllm together", marks=VLLM)])
def test_each_rank_samples_from_the_whole_policy(engine_name, tmp_path):
    tiny_llama(tied=True).config.save_pretrained(tmp_path)
    on_two_ranks(work, engine_name, str(tmp_path))
