"""`apo preflight` prints a plan, lists everything that is wrong at once, and says so in its exit status."""

import json
from collections import Counter

import pytest
import torch

from apo_lightning.run import recipe as recipes
from apo_lightning.run.recipe import Recipe
from apo_plan import findings
from apo_plan.plan import plan_run
from apo_plan.preflight import preflight
from benchmarks.shared.models import LLAMA3B, QWEN7B
from composing import composed as composed_as
from processes import start_script


def composed(*overrides):
    return composed_as(*overrides, config_name="preflight")


def row(printed: str, name: str) -> list[str]:
    (line,) = [line for line in printed.splitlines() if line.startswith(name)]
    return line.removeprefix(name).split()


def test_a_run_that_can_work_prints_its_plan_and_returns_0(tmp_path, capsys):
    cfg = composed("model=tiny", "engine=transformers", "callbacks=none", "prompts_per_minibatch=4")
    assert preflight(cfg, tmp_path) == 0
    printed = capsys.readouterr().out
    generate, check, update, sync = map(float, row(printed, "together"))
    assert 0.6 < generate <= check <= update < 1.2
    assert sync <= update
    # A terminal of 80 columns shows the table whole.
    table = printed[: printed.index("in the machine's memory")].splitlines()[2:]
    assert max(len(line.rstrip()) for line in table) <= 80
    assert "error" not in printed
    assert float(row(printed, "a step")[0]) > 0


def test_each_piece_of_the_run_is_made_once(tmp_path, monkeypatch):
    made, make = Counter(), recipes.instantiate
    monkeypatch.setattr(recipes, "instantiate", lambda node, **how: made.update([str(node)]) or make(node, **how))
    cfg = composed("model=tiny", "engine=transformers", "algo=ppo", "prompts_per_minibatch=4", "data.max_operand=30")
    assert preflight(cfg, tmp_path) == 0
    assert set(made.values()) == {1}
    assert {str(cfg.data), str(cfg.model), str(cfg.engine), str(cfg.algo.critic), str(cfg.reward)} <= {*made}


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_everything_wrong_is_listed_at_once_and_the_plan_is_made_all_the_same(tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN7B))
    cfg = composed("experiment=paper/qwen_math7b_apo", f"model.path={folder}", "prompts_per_minibatch=4")
    assert preflight(cfg, tmp_path) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "7,615.6M parameters, computing in bfloat16" in printed
    assert "weights 3.55 3.55 3.55 3.55" in printed  # 4·7,615,616,512/8 bytes
    assert "gradients · · 3.55 ·" in printed
    assert "loading: 29.04 GiB the first process, 2.70 GiB each other; from then on 0.87 GiB a process" in printed
    assert "error: the trainer asks for 8 GPUs" in printed
    assert "error: prompts_per_minibatch is 4" in printed


def test_a_piece_that_cannot_be_made_hides_no_other(tmp_path, capsys):
    wrong = ("algo.loss.clip_eps=3", "optimizer._target_=torch.optim.Nope", "prompts_per_minibatch=3")
    judge = ("reward=callable", "reward.function._target_=nowhere.f")
    assert preflight(composed("model=tiny", "engine=transformers", "data=arithmetic", *wrong, *judge), tmp_path) == 1
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
    said = ("prompts_per_minibatch is 3", "clip_eps is 3", "optimizer._target_ is", "reward.function._target_ is")
    assert len(found) == len(said)
    assert [part for part in said if not any(part in line for line in found)] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(
    ("sizes", "overrides"),
    [
        (QWEN7B, ("experiment=paper/qwen7b_apo",)),
        (LLAMA3B, ("algo=apo", "model=llama3b", "trainer=fsdp8", "data=dapo17k", "reward=math_verify")),
    ],
    ids=["qwen7b", "llama3b"],
)
def test_what_runs_on_eight_gpus_by_default_fits(sizes, overrides, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    cfg = composed(*overrides, f"model.path={tmp_path}")
    plan = plan_run(Recipe(cfg))
    assert plan.run.compiles_layers
    assert not plan.run.gradient_checkpointing
    assert plan.memory.total("update") <= plan.memory.peak <= 0.9 * 80e9


def test_a_model_that_cannot_be_had_is_one_line_and_the_rest_is_still_checked(tmp_path, capsys):
    missing = ("model=tiny", "model.path=/no/such/model", "model.config=null", "engine=transformers")
    sizes = ("prompts_per_minibatch=1", "trainer.max_steps=0")
    no_data = ("data=gsm8k", "data.path=/no/such.jsonl")
    no_reward = ("reward=callable", "reward.function._target_=interrupting.breaks_at_once")
    for wrong, expected in (
        (sizes, ("max_steps is 0", "minibatch is 1")),
        (no_data, ("data file /no/such.jsonl does not exist",)),
        (no_reward, ("reward interrupting.breaks_at_once failed: MemoryError",)),
        (("data=locks", "reward=puzzle"), ()),
        (("data=arithmetic", "data.num_validation=4", "data.max_operand=20"), ()),
    ):
        assert preflight(composed(*missing, "trainer=fsdp_cpu2", *wrong), tmp_path) == 1
        errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
        expected = ("model.path=/no/such", *expected)
        assert all(words in error for words, error in zip(expected, errors, strict=True)), errors


def test_snapshots_and_the_best_checkpoint_need_room_on_the_disk(tmp_path, monkeypatch):
    needed = []
    monkeypatch.setattr(findings, "disk_findings", lambda _, size: needed.append(size) or [])
    kept = ("checkpoint.snapshot_every=5", "checkpoint.best=val/arithmetic/pass@1")
    for own in ((), kept):
        cfg = composed("model=tiny", "engine=transformers", "trainer.max_steps=20", *own)
        preflight(cfg, tmp_path)
    # Four snapshots; a checkpoint has weights and two moments.
    assert needed[1] - needed[0] == (4 + 3) * 4 * plan_run(Recipe(cfg)).model.num_parameters


@pytest.mark.slow
def test_the_command_line_leaves_the_status_and_no_colour_in_a_file(tmp_path):
    arguments = ["model=tiny", "engine=transformers", "group_size=0", f"hydra.run.dir={tmp_path}"]
    script = start_script("preflight", *arguments)
    assert (script.wait(), "\x1b" in script.said) == ([1], False), script.said
    assert "error: group_size is 0: give a number of at least 1" in script.said.splitlines()


@pytest.mark.slow
def test_the_command_line_plans_for_gpus_that_this_machine_lacks(tmp_path):
    arguments = [
        "model=tiny",
        "engine=transformers",
        "trainer=fsdp8",
        "trainer.devices=64",
        f"hydra.run.dir={tmp_path}",
    ]
    script = start_script("preflight", *arguments)
    assert script.wait() == [1]
    assert "error: the trainer asks for 64 GPUs" in script.said
    assert "memory" in script.said
