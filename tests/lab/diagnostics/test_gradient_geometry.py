import math

import lightning.pytorch as pl
import pytest
import torch
from hydra.utils import instantiate

from apo_lab.diagnostics import GradientGeometry
from apo_lab.diagnostics.gradient_spaces import Measured, _gradient, _statistics
from apo_lab.losses.terms import term_names
from apo_lightning.callbacks import StepCallback
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO
from apo_lightning.types import Needs
from composing import composed
from running import SIGNAL, run, train_tiny

GEOMETRY = (
    "callbacks=gradient_geometry",
    "callbacks.gradient_geometry.every_n_steps=1",
    "callbacks.gradient_geometry.num_prompts=4",
    "callbacks.gradient_geometry.spaces=[logits,head,params]",
)
SMALL = (*SIGNAL, "data.max_completion_tokens=8", "optimizer.lr=1e-2")


class Keeping(StepCallback):
    """Keeps the last step."""

    needs = Needs(ref_logprobs=True, anchor_size=8)

    def on_step(self, step):
        self.step = step


@pytest.mark.parametrize("algo", ["apo", "grpo_kl"])
def test_it_steers_nothing_and_every_space_has_its_shares(tmp_path, algo):
    alone, _ = run(tmp_path / "alone", *SMALL, f"algo={algo}")
    watched, rows = run(tmp_path / "watched", *SMALL, f"algo={algo}", *GEOMETRY)
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    row = {key.removeprefix("geometry/"): float(value) for key, value in rows[-1].items() if "geometry/" in key}
    names = ("reward", "push", "pull") if algo == "apo" else ("reward", "push", "kl")
    for space in ("logits", "head", "params"):
        assert sum(row[f"{space}/share_{name}"] for name in names) == pytest.approx(1, abs=1e-6)
        assert 0 <= row[f"{space}/cancelled"] <= 1
        assert row[f"{space}/norm_push"] > 0
    # On different tokens, and so at right angles, where tokens share no parameters.
    assert row["logits/cos_reward_push"] == pytest.approx(0, abs=1e-12)
    assert abs(row["head/cos_reward_push"]) > 1e-3
    assert 0 <= row["outside_after"] <= 1
    assert row["logits/num_nonfinite"] == 0
    if algo == "apo":
        assert row["logits/align_pull_anchors"] > 0.3
        assert math.isnan(row["pull_over_push_0.9_to_1"]) or row["pull_over_push_0.9_to_1"] > 0


@pytest.mark.parametrize("algo", ["apo", "grpo_kl"])
def test_the_terms_sum_to_the_gradient_of_the_loss_in_head_and_parameters(tmp_path, algo):
    keeping = f"+callbacks.keeping._target_={__name__}.Keeping"
    module = train_tiny(tmp_path, *SMALL, f"algo={algo}", keeping, "trainer.max_steps=1")
    (keeper,) = [c for c in module.trainer.callbacks if isinstance(c, Keeping)]
    measured = Measured(
        step=keeper.step, loss=module.loss, settings=module.settings, anchor_size=8, exclude_sampled=True
    )
    table, everything = measured.table, range(16)
    weights = measured.weights(everything)
    wanted = module.loss.reference_mask(table.advantages, table.is_correct)
    for space in ("head", "params"):
        leaves = [module.policy.head_weight] if space == "head" else list(module.policy.parameters())
        whole = [torch.zeros_like(leaf) for leaf in leaves]
        for part, said, own in _statistics(measured, module, everything, leaves, space):
            inputs = table.loss_inputs(part, said, old_logprobs=None, needs=module.loss.needs, reference_mask=wanted)
            loss = (weights[part.token_index] * module.loss(inputs).per_token).sum()
            for total, found in zip(whole, torch.autograd.grad(loss, own), strict=True):
                total -= found
        terms = [
            _gradient(measured, module, weights, everything, name, space, 2**12) for name in term_names(module.loss)
        ]
        expected = whole[0].flatten().double()
        if space == "params":
            from apo_lab.statistics.gradient_geometry import count_sketch

            expected = count_sketch(whole, 2**12, module.seed)
        torch.testing.assert_close(sum(terms), expected, atol=1e-5 * float(expected.norm()), rtol=0)
    assert all(parameter.grad is None for parameter in module.policy.parameters())


def test_it_reads_the_losss_own_anchors_or_the_papers():
    callback = GradientGeometry()
    callback.prepare(APO(anchor_size=4))
    assert callback.needs == Needs(ref_logprobs=True, anchor_size=4)
    callback.prepare(GRPO())
    assert callback.needs == Needs(ref_logprobs=True, anchor_size=8)


@pytest.mark.parametrize(
    ("trainer", "where"), [("ddp_cpu2", "2 processes"), ("fsdp_cpu2", "2 processes"), ("fsdp_cpu2", "a sharded policy")]
)
def test_gradients_of_shards_are_refused(trainer, where):
    """With whole weights in one process alone is the gradient to a parameter what `autograd.grad` says."""
    is_alone = not where.startswith("2")
    one = ("trainer.devices=1", "trainer.strategy.data_parallel_size=1") if is_alone else ()
    configured = instantiate(composed(f"trainer={trainer}", *one).trainer, logger=False)
    with pytest.raises(ConfigError, match=rf"spaces is \['logits', 'head'\] with {where}: .* spaces=\[logits\]"):
        GradientGeometry(spaces=["logits", "head"]).setup(configured, pl.LightningModule(), "fit")
    GradientGeometry(spaces=["logits"]).setup(configured, pl.LightningModule(), "fit")


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match="spaces has 'lora': choose from logits, head, params"):
        GradientGeometry(spaces=["lora"])
    with pytest.raises(ConfigError, match="num_prompts is 1: give 2 or more"):
        GradientGeometry(num_prompts=1)
