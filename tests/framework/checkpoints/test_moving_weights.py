"""Runs whose reference follows the policy or whose policy is averaged with the base, stopped and gone on from."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from apo_lightning.checkpoints.contents import tensor_shapes
from apo_lightning.checkpoints.folder import TENSORS, complete_checkpoints
from apo_lightning.errors import ConfigError
from apo_lightning.module import RLVRModule
from apo_lightning.run.evaluated_policy import find_evaluated_policy
from apo_lightning.run.exporting import export
from composing import composed
from running import SIGNAL, run_train, train_tiny, training_rows, weights, without_clock

SETTINGS = (
    *("callbacks=none", "data.max_completion_tokens=12", "trainer.max_steps=3", "optimizer.lr=1e-2"),
    *("checkpoint.save_every=1", "checkpoint.keep=3"),
)
RESET, REFRESH = "reference.reset_every=2", "reference.refresh_every=2"
EMA, AVERAGING = "reference.ema_tau=0.9", ("averaging.weight=0.3", "averaging.every_n_steps=2")
MODES = {
    "reset": (RESET,),
    "refresh": (REFRESH,),
    "averaging with adapters": (*AVERAGING, "policy=lora"),
    "ema and averaging": (EMA, *AVERAGING),
}


def trained(folder: Path, *overrides: str) -> RLVRModule:
    return train_tiny(folder, *SIGNAL, *SETTINGS, *overrides)


def state(module: RLVRModule) -> list[torch.Tensor]:
    """Weights, reference and optimizer state."""
    optimizer = [entry[key] for entry in module.optimizer.state.values() for key in sorted(entry)]
    of_parts = [tensor for part in module.parts for tensor in part.tensors.values()]
    return [*weights(module).values(), *of_parts, *optimizer]


def logged(folder: Path) -> list[dict[str, str]]:
    """The training rows without times and the age of the reference."""
    return [
        {key: value for key, value in without_clock(row).items() if key != "reference/age"}
        for row in training_rows(folder)
    ]


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    return trained(folder), folder


@pytest.mark.parametrize("mode", MODES)
def test_a_run_is_gone_on_from_to_the_bit(frozen, mode, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    expected = trained(whole, *MODES[mode])
    if "policy=lora" not in MODES[mode]:
        # The third step is the first that reads what the second changed.
        assert logged(whole)[:2] == logged(frozen[1])[:2] or EMA in MODES[mode]
        assert logged(whole)[2] != logged(frozen[1])[2]
    for step in (1, 2):
        shutil.rmtree(resumed, ignore_errors=True)
        for name in (f"checkpoints/step_{step:06d}", ".hydra"):
            if (whole / name).is_dir():
                shutil.copytree(whole / name, resumed / name)
        (resumed / "metrics.csv").write_bytes((whole / "metrics.csv").read_bytes())
        found = trained(resumed, *MODES[mode], "resume=auto")
        pairs = list(zip(state(found), state(expected), strict=True))
        assert all(torch.equal(a, b) for a, b in pairs), step
        assert logged(resumed) == logged(whole)


def test_a_checkpoint_holds_the_reference_where_it_changes_alone(frozen, tmp_path):
    trained(tmp_path, RESET, "trainer.max_steps=1")
    with_reference, without = (
        tensor_shapes(complete_checkpoints(folder / "checkpoints")[0][0].folder / TENSORS)
        for folder in (tmp_path, frozen[1])
    )
    added = with_reference.keys() - without.keys()
    assert {name.replace("reference.", "policy.", 1) for name in added} == {n for n in without if n[:7] == "policy."}


@pytest.mark.parametrize(
    "still", ["reference.ema_tau=1", "reference.reset_every=99", "reference.refresh_every=1 reference.refresh_alpha=0"]
)
def test_a_rule_at_its_end_is_the_run_with_a_frozen_reference_to_the_bit(frozen, still, tmp_path):
    found = weights(trained(tmp_path, *still.split()))
    assert all(torch.equal(found[name], weight) for name, weight in weights(frozen[0]).items())
    assert logged(tmp_path) == logged(frozen[1])


def test_a_reset_makes_the_policy_the_reference_and_starts_the_optimizer_again(tmp_path):
    module = trained(tmp_path / "all", "reference.reset_every=3")
    assert module.reference is not None
    pairs = zip(module.policy.parameters(), module.reference.policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not module.optimizer.state
    trained(tmp_path / "one", "reference.reset_every=1")
    assert [row["reference/age"] for row in training_rows(tmp_path / "one")] == ["0.0"] * 3
    assert [row["reference/age"] for row in training_rows(tmp_path / "all")] == ["0.0", "1.0", "2.0"]


def test_refreshed_every_step_the_anchors_have_the_policys_own_probability(frozen, tmp_path):
    options = ("reference.refresh_every=1", "reference.refresh_alpha=1", "prompts_per_minibatch=4")
    trained(tmp_path, *options)
    ratios = [float(row["apo/anchor_ratio"]) for row in training_rows(tmp_path)]
    assert ratios == pytest.approx([1, 1, 1], abs=1e-5)
    last = float(training_rows(frozen[1])[-1]["apo/anchor_ratio"])
    assert last != pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("algo=grpo", RESET), "reset_every is 2, but neither the loss nor a callback reads a reference"),
        (("policy=lora", EMA), r"ema_tau is 0\.9: with adapters the reference is the policy without them"),
    ],
)
def test_what_cannot_work_is_one_line_before_any_weights_are_loaded(options, message, tmp_path, monkeypatch):
    monkeypatch.setattr("apo_lightning.run.training.load_model", None)
    with pytest.raises(ConfigError, match=message):
        trained(tmp_path, *options)


def test_a_reference_of_another_model_is_refused(tmp_path):
    other = tmp_path / "other"
    module = trained(tmp_path / "run", "trainer.max_steps=1", "model.config.hidden_size=32", EMA)
    module.policy.save_pretrained(other)
    trained(tmp_path / "frozen", "trainer.max_steps=1", f"reference.path={other}")
    with pytest.raises(ConfigError, match=r"ema_tau is 0\.9, but reference_path is .*, which has other layers"):
        trained(tmp_path / "moving", EMA, f"reference_path={other}")
    module.policy.model.resize_token_embeddings(module.policy.head_weight.shape[0] + 8, mean_resizing=False)
    module.policy.save_pretrained(other)
    with pytest.raises(ConfigError, match="whose head has"):
        trained(tmp_path / "vocabulary", f"reference_path={other}")


@pytest.mark.parametrize("policy", ["full", "lora"])
def test_a_checkpoint_is_averaged_with_the_base(policy, tmp_path):
    run = tmp_path / "run"
    run_train(run, *SETTINGS, f"policy={policy}", "trainer.max_steps=1", "callbacks=quiet")

    def averaged(weight, *of_part):
        to = tmp_path / "_".join([str(weight), *of_part])
        options = (f"average_with_base={weight}", f"to='{to}'", *of_part)
        return export(composed(f"run={run}", *options, config_name="export"))

    folders = [averaged(weight) for weight in (0, 0.25, 1)]
    last, found, base = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders)
    final = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "final").state_dict()
    assert all(torch.equal(last[name], weight) for name, weight in final.items())
    assert any(not torch.equal(last[name], base[name]) for name in base)
    for name in base:
        expected = 0.75 * last[name].double() + 0.25 * base[name].double()
        torch.testing.assert_close(found[name].double(), expected, atol=1e-6, rtol=0)
    spec = composed(f"run={run}", config_name="evaluate")
    initial = find_evaluated_policy(spec, []).load_reference(torch.device("cpu")).model.state_dict()
    assert all(torch.equal(base[name], weight) for name, weight in initial.items())
    late = AutoModelForCausalLM.from_pretrained(averaged(1, "average_part=last")).state_dict()
    for name, weight in late.items():
        assert torch.equal(weight, (base if ".layers.1." in name else last)[name]), name
    for weight, options, message in (
        (1.5, (), r"average_with_base is 1\.5"),
        (0, (), "exists"),
        (0.5, ("average_part=late",), "average_part is late: choose all, first, middle, last, outside"),
        (0.0, ("average_part=last",), "average_part is last, but average_with_base is 0"),
        (0.5, ("average_part=middle",), "average_part is middle, and no trained weight lies there"),
    ):
        with pytest.raises(ConfigError, match=message):
            averaged(weight, *options)
