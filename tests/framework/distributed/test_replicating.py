"""Of the processes that measure a policy the first alone reads it, and all hold the same."""

import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hydra.utils import instantiate

from apo_lightning.distributed.replicating import on_first_rank, replicate
from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec
from composing import composed
from processes import on_two_ranks

CPU = torch.device("cpu")
BFLOAT16 = torch.bfloat16
SEQUENCES = PackedSequences(prompts=[(5, 6, 7), (9,)], completions=[(11, 12, 13), (14, 15)], owners=[0, 1])


def tiny_spec() -> PolicySpec:
    return instantiate(composed("model=tiny").model, _convert_="all")


def logprobs(policy: Policy) -> torch.Tensor:
    (microbatch,) = SEQUENCES.microbatches([0, 1], 100, CPU)
    with torch.no_grad():
        return policy(microbatch).logprobs


def off_powers_of_two(policy: Policy) -> Policy:
    """Weights that no rounding leaves alone, the norms' too."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1 + 0.3 * torch.rand(parameter.shape, generator=generator))
    return policy


def test_rounded_matrices_are_what_autocast_makes_of_whole_ones():
    spec = tiny_spec()
    policy = off_powers_of_two(Policy(spec.load_model(1), spec.load_tokenizer(), BFLOAT16)).eval()
    before, num_bytes = logprobs(policy), sum(p.nbytes for p in policy.parameters())
    rounded, all_of_it = copy.deepcopy(policy), copy.deepcopy(policy).to(BFLOAT16)
    rounded.round_matrices()
    assert torch.equal(logprobs(rounded), before)
    matrices = [p for p in rounded.model.base_model.layers.parameters() if p.dim() == 2]
    assert {p.dtype for p in matrices} == {BFLOAT16}
    assert sum(p.nbytes for p in rounded.parameters()) == num_bytes - 2 * sum(p.numel() for p in matrices)
    # A residual stream in bfloat16 is another policy: this is what the matrices alone do not cost.
    assert not torch.equal(logprobs(all_of_it), before)


def test_in_float32_nothing_is_rounded():
    spec = tiny_spec()
    policy = Policy(spec.load_model(1), spec.load_tokenizer(), torch.float32)
    before = copy.deepcopy(policy.state_dict())
    policy.round_matrices()
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


def fails():
    raise OSError("no such file")


def on_each_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2, timeout=timedelta(minutes=3)
    )
    spec = tiny_spec()
    for dtype in (torch.float32, BFLOAT16):
        alone = Policy(spec.load_model(1), spec.load_tokenizer(), dtype)
        model = on_first_rank((lambda: spec.load_model(1)) if rank == 0 else fails, spec.load_skeleton)
        policy = Policy(model, spec.load_tokenizer(), dtype)
        for one in (policy, alone):
            one.round_matrices()
        replicate(policy, CPU)
        assert policy.head_weight is policy.model.get_input_embeddings().weight
        for kind in ("named_parameters", "named_buffers"):
            found, expected = dict(getattr(policy, kind)()), dict(getattr(alone, kind)())
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
            assert all(found[name].dtype == tensor.dtype for name, tensor in expected.items())

    kind, words = (OSError, "no such") if rank == 0 else (ConfigError, r"first rank .* OSError: no such file")
    with pytest.raises(kind, match=words):
        on_first_rank(fails, spec.load_skeleton)
    dist.destroy_process_group()


def test_all_ranks_hold_what_the_first_has_read_and_end_with_it(tmp_path):
    on_two_ranks(on_each_rank, tmp_path)
