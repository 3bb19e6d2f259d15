"""Two processes that shard hold what one process holds, and the first alone ever has it whole."""

import os
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from hydra.utils import instantiate
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig

from apo_lightning.distributed.root_params import grad_sync, unsharded_root
from apo_lightning.distributed.sharding import load_model, shard
from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.model.reference import ReferenceSchedule
from apo_lightning.parts.moving_reference import MovingReference
from composing import composed, tiny_spec
from factories import logprob_sum
from processes import on_two_ranks

CPU = torch.device("cpu")
SEQUENCES = PackedSequences(
    prompts=[(5, 6, 7), (9,)], completions=[(11, 12), (13, 14), (15, 16, 17), (18,)], owners=[0, 0, 1, 1]
)


def loaded(spec, trainer):
    return load_model(lambda: spec.load_model(1), spec.load_skeleton, trainer)


def make_policy(spec, model) -> Policy:
    return Policy(model, spec.load_tokenizer(), spec.dtype(CPU))


def gradient_of(policy, completions, scale=1.0) -> None:
    """Of Σ log π over the completions: what backward leaves in `.grad`."""
    (microbatch,) = SEQUENCES.microbatches(completions, 100, CPU)
    with unsharded_root(policy):
        (scale * logprob_sum(policy, microbatch)).backward()


class CountedCasts(TorchDispatchMode):
    """Counts tensors of the shape of a layer's matrix that are brought to another dtype."""

    def __init__(self, layer):
        super().__init__()
        self.shapes = {tuple(p.shape) for p in layer.parameters() if p.dim() == 2}
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        is_cast = function is torch.ops.aten._to_copy.default
        self.count += is_cast and tuple(arguments[0].shape) in self.shapes
        return function(*arguments, **(keywords or {}))


class CountedCollectives(TorchDispatchMode):
    """Counts what FSDP2 gathers and reduces."""

    def __init__(self):
        super().__init__()
        self.num_gathered = self.num_reduced = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.num_gathered += function is torch.ops.c10d._allgather_base_.default
        self.num_reduced += function is torch.ops.c10d._reduce_scatter_base_.default
        return function(*arguments, **(keywords or {}))


class Probe(pl.LightningModule):
    """Lightning's own set-up around what is looked at."""

    def __init__(self, policy):
        super().__init__()
        self.policy, self.reference = policy, Reference(policy)

    def configure_model(self):
        shard([self.policy, self.reference.policy], self.trainer)

    def validation_step(self, batch, batch_idx):
        with torch.enable_grad():
            looks_like_one_process(self.policy, self.reference.policy)
            looks_like_autocast(self.trainer)
            the_reference_lies_as_it_is_gathered(self.trainer)
            a_reference_that_follows_is_that_of_one_process(self.trainer)
            gathers_each_unit_once(self.policy, self.reference, self.trainer.strategy)
            micro_batches_add_up_to_one_gradient(self.policy, self.trainer.strategy)
            a_pass_reads_the_weights_of_now(self.policy)
            a_pass_that_would_leave_the_root_whole_is_refused(self.policy, self.reference.policy)


def on_each_rank(rank):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    os.environ.update(MASTER_PORT="29731", TORCHELASTIC_RUN_ID="test")
    trainer = instantiate(composed("trainer=fsdp_cpu2").trainer, logger=False, inference_mode=False)
    model = loaded(tiny_spec(), trainer)
    assert {tensor.device.type for tensor in (*model.parameters(), *model.buffers())} == {"meta"}
    assert bool(trainer.strategy.whole_weights) == (rank == 0)
    probe = Probe(make_policy(tiny_spec(), model))
    trainer.validate(probe, [], verbose=False)  # configures the model, and then has nothing to look at
    trainer.validate(probe, [0], verbose=False)
    torch.distributed.destroy_process_group()


def looks_like_one_process(policy, reference):
    """Exact in float32, the weights and all that stands beside them; the gradient up to the order of summation."""
    spec = tiny_spec()
    alone = make_policy(spec, spec.load_model(1))
    for sharded in (policy, reference):
        assert sharded.head_weight is sharded.model.get_input_embeddings().weight
        parameters = dict(sharded.model.named_parameters())
        assert parameters.keys() == dict(alone.model.named_parameters()).keys()
        for name, parameter in alone.model.named_parameters():
            assert abs(2 * len(parameters[name].to_local()) - len(parameter)) <= 1, name
            assert torch.equal(parameters[name].full_tensor(), parameter), name
        buffers = dict(sharded.model.named_buffers())
        assert any("inv_freq" in name for name in buffers)
        for name, buffer in alone.model.named_buffers():
            assert torch.equal(buffers[name], buffer), name
    assert not any(parameter.requires_grad for parameter in reference.parameters())

    gradient_of(alone, [0, 1, 2, 3])
    rank = torch.distributed.get_rank()
    gradient_of(policy, [rank, 2 + rank], scale=2.0)  # FSDP takes the mean over ranks
    gradients = dict(policy.named_parameters())
    for name, parameter in alone.named_parameters():
        found = gradients[name].grad.full_tensor()
        assert (found - parameter.grad).norm() <= 1e-5 * parameter.grad.norm(), name
    assert all(parameter.grad.dtype == torch.float32 for parameter in policy.parameters())


def looks_like_autocast(trainer):
    """Layers are gathered in bfloat16, and the residual stream and the gradients stay in float32."""
    spec = tiny_spec(compute_dtype="bfloat16")
    policy, alone = make_policy(spec, loaded(spec, trainer)), make_policy(spec, spec.load_model(1))
    shard([policy], trainer)
    (microbatch,) = SEQUENCES.microbatches([0, 1, 2, 3], 100, CPU)
    dtypes = {}
    layer = policy.model.base_model.layers[1]
    layer.mlp.up_proj.register_forward_pre_hook(lambda module, _: dtypes.update(weight=module.weight.dtype))
    layer.register_forward_hook(lambda module, inputs, output: dtypes.update(stream=output.dtype))
    casts = CountedCasts(alone.model.base_model.layers[1])
    with torch.no_grad():
        with casts, unsharded_root(policy):
            found = policy(microbatch).logprobs
        assert casts.count == 0  # as `memory_plan` counts on: FSDP2 has gathered them in their dtype
        with casts:
            expected = alone(microbatch).logprobs
        assert casts.count == 7 * 2  # the matrices of two layers
    assert dtypes == {"weight": torch.bfloat16, "stream": torch.float32}
    # the tiny model's norms are ones, which bfloat16 holds exactly: every product is autocast's
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    gradient_of(policy, [0, 1, 2, 3])
    for parameter in policy.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32


def the_reference_lies_as_it_is_gathered(trainer):
    """Its layers are shards in bfloat16, the rest in float32; it says what the policy says, to the bit."""
    spec = tiny_spec(compute_dtype="bfloat16")
    policy = make_policy(spec, loaded(spec, trainer))
    for name, weight in trainer.strategy.whole_weights.items():
        if "norm" in name:  # ones so far, which bfloat16 holds exactly
            weight.detach().mul_(1.013)
    reference = Reference(policy)
    shard([policy, reference.policy], trainer)
    for name, parameter in reference.policy.model.named_parameters():
        assert parameter.to_local().dtype == (torch.bfloat16 if ".layers." in name else torch.float32), name
    assert all(parameter.to_local().dtype == torch.float32 for parameter in policy.parameters())
    (microbatch,) = SEQUENCES.microbatches([0, 1, 2, 3], 100, CPU)
    with torch.no_grad(), unsharded_root(policy), unsharded_root(reference.policy):
        expected = policy(microbatch).logprobs
        assert torch.equal(reference.score(microbatch, 0, temperature=1.0).logprobs, expected)

    # Unsharded, a layer's norms are not rounded; with weights that are already, both say the same.
    alone = make_policy(spec, spec.load_model(1))
    norms = {name: p for name, p in alone.model.named_parameters() if "norm" in name}
    with torch.no_grad():
        for norm in norms.values():
            norm.mul_(1.013)
        assert not torch.equal(alone(microbatch).logprobs, expected)
        for name, norm in norms.items():
            if ".layers." in name:
                norm.copy_(norm.bfloat16())
        assert torch.equal(alone(microbatch).logprobs, expected)


def a_reference_that_follows_is_that_of_one_process(trainer):
    """Each rank averages its own shards, in float32; a reset rounds them as sharding did."""
    spec = tiny_spec(compute_dtype="bfloat16")
    (microbatch,) = SEQUENCES.microbatches([0, 1, 2, 3], 100, CPU)
    for schedule in (ReferenceSchedule(ema_tau=0.75), ReferenceSchedule(reset_every=1)):
        policy = make_policy(spec, loaded(spec, trainer))
        reference = Reference(policy, is_mixed=schedule.mixes)
        shard([policy, reference.policy], trainer)
        alone = make_policy(spec, spec.load_model(1))
        expected = Reference(alone, is_mixed=schedule.mixes)
        expected.to(CPU)
        for model, copy in ((policy, reference), (alone, expected)):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.013)
            setup, optimizer = SimpleNamespace(policy=model), SimpleNamespace(state={})
            part = MovingReference(copy, schedule)
            part.optimizer_step(setup, policy_moved=True)
            part.updated(setup, 1, optimizer)
        for name, weight in MovingReference(expected, schedule).tensors.items():
            found = MovingReference(reference, schedule).tensors[name].full_tensor()
            if schedule.mixes:
                assert weight.dtype == torch.float32
                assert torch.equal(found, weight), name
            else:
                assert torch.equal(found.bfloat16(), weight.bfloat16()), name
        with torch.no_grad(), unsharded_root(policy), unsharded_root(reference.policy):
            says = reference.score(microbatch, 0, temperature=1.0).logprobs
            assert torch.equal(says, policy(microbatch).logprobs) == (schedule.rule == "reset_every")


def gathers_each_unit_once(policy, reference, strategy):
    """A unit a layer, for each micro-batch; the root, with embedding and head, for the first of a pass alone."""
    n = len(policy.model.base_model.layers)
    microbatches = [*SEQUENCES.microbatches([0, 1], 100, CPU), *SEQUENCES.microbatches([2, 3], 100, CPU)]
    for root, run, num_gathered, num_reduced in (
        (reference.policy, lambda microbatch, _: reference.score(microbatch, 4, temperature=1.0), n, 0),
        (policy, lambda microbatch, _: policy(microbatch), n, 0),
        (policy, lambda microbatch, is_last: update(policy, strategy, microbatch, is_last), 2 * n, n),
    ):
        with CountedCollectives() as counted, torch.set_grad_enabled(num_reduced > 0), unsharded_root(root):
            for i, microbatch in enumerate(microbatches):
                run(microbatch, i == len(microbatches) - 1)
                assert not isinstance(root.head_weight, DTensor)
        assert isinstance(root.head_weight, DTensor)
        assert counted.num_gathered == len(microbatches) * num_gathered + 1
        assert counted.num_reduced == len(microbatches) * num_reduced + (num_reduced > 0)
    policy.zero_grad()


def micro_batches_add_up_to_one_gradient(policy, strategy):
    """The root's is added up whole and reduced once."""
    gradient_of(policy, [0, 1, 2, 3])
    expected = [parameter.grad.full_tensor() for parameter in policy.parameters()]
    policy.zero_grad()
    with unsharded_root(policy):
        update(policy, strategy, *SEQUENCES.microbatches([0, 1], 100, CPU), is_last=False)
        update(policy, strategy, *SEQUENCES.microbatches([2, 3], 100, CPU), is_last=True)
    for parameter, gradient in zip(policy.parameters(), expected, strict=True):
        assert (parameter.grad.full_tensor() - gradient).norm() <= 1e-5 * gradient.norm()
    policy.zero_grad()


def a_pass_reads_the_weights_of_now(policy):
    """What a pass has gathered is gone when the next begins: an optimizer may have stepped on the shards."""
    (microbatch,) = SEQUENCES.microbatches([0, 1, 2, 3], 100, CPU)
    with torch.no_grad():
        with unsharded_root(policy):
            before = policy(microbatch).logprobs
        policy.head_weight.mul_(2.0)
        with unsharded_root(policy):
            assert not torch.allclose(policy(microbatch).logprobs, before)
        policy.head_weight.mul_(0.5)
        with unsharded_root(policy):
            assert torch.equal(policy(microbatch).logprobs, before)


def a_pass_that_would_leave_the_root_whole_is_refused(policy, reference):
    (microbatch,) = SEQUENCES.microbatches([0, 1, 2, 3], 100, CPU)
    for run in (policy, policy.hidden_states):
        with pytest.raises(RuntimeError, match=r"outside of .*unsharded_root\(policy\)"), unsharded_root(reference):
            run(microbatch)


def update(policy, strategy, microbatch, is_last):
    """As the training loop takes a micro-batch's gradient."""
    head = policy.detached_head(policy.hidden_states(microbatch), temperature=1.0)
    for tokens in head.chunks():
        head.add(head.statistics(tokens, microbatch.targets[tokens]).logprobs.sum())
    with grad_sync([policy], strategy, enabled=is_last):
        head.total_loss().backward()


@pytest.mark.slow
def test_two_ranks_hold_half_of_what_one_process_holds_and_find_its_gradient():
    on_two_ranks(on_each_rank)


def test_a_skeleton_knows_all_but_the_weights(tmp_path):
    random = tiny_spec()
    model = random.load_model(1)
    model.generation_config = GenerationConfig(eos_token_id=[2, 5])
    model.save_pretrained(tmp_path)
    random.load_tokenizer().save_pretrained(tmp_path)
    saved = tiny_spec(path=str(tmp_path), config=None)
    for spec, stop_token_ids in ((random, (2,)), (saved, (2, 5))):
        skeleton, loaded = make_policy(spec, spec.load_skeleton()), make_policy(spec, spec.load_model(1))
        assert skeleton.stop_token_ids == loaded.stop_token_ids == stop_token_ids
        assert spec.stop_token_ids(loaded.tokenizer) == stop_token_ids
        assert [*skeleton.state_dict()] == [*loaded.state_dict()]
        assert [name for name, _ in skeleton.named_buffers()] == [name for name, _ in loaded.named_buffers()]
        assert skeleton.model.training == loaded.model.training
        assert skeleton.model.config.to_dict() == loaded.model.config.to_dict()
        assert {tensor.device.type for tensor in skeleton.state_dict().values()} == {"meta"}


def test_a_strategy_of_lightnings_own_is_refused():
    strategy = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=1, process_group_backend="gloo")
    trainer = pl.Trainer(accelerator="cpu", devices=1, strategy=strategy, logger=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match="ShardedStrategy"):
        loaded(tiny_spec(), trainer)
