"""What the command line refuses, in one line and before anything large is imported; and what it takes."""

import ast
import subprocess
import sys

import pytest
from composing import ROOT, composed, names
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from processes import start_script

from apo_lightning import run
from apo_lightning.run import prepare, user_message
from apo_lightning.run.choices import expand_glob
from apo_lightning.run.launching import ALLOCATOR_VARIABLES
from test_configs import PAPER

LARGE = ("torch", "transformers", "lightning", "vllm", "matplotlib", "sklearn")


def imported(command: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own, which at its end prints which large packages it has imported."""
    code = f"""
import atexit, sys
atexit.register(lambda: print(*(name for name in {LARGE} if name in sys.modules), file=sys.stderr))
{command}"""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["train", "evaluate", "report", "export"])
def test_what_hydra_refuses_is_said_before_anything_large_is_imported(name):
    done = imported(f"sys.argv[1:] = ['bad=override']; import runpy; runpy.run_path('{name}.py', run_name='__main__')")
    refusal, large = done.stderr.splitlines()
    assert refusal.startswith("error: Could not override 'bad'")
    assert large == ""


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        *(({name: "max_split_size_mb:64"},) * 2 for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")),
    ],
)
def test_a_rank_knows_its_allocators_settings_before_it_imports_torch_and_the_users_own_win(own, expected, monkeypatch):
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "1")  # as launched by Lightning, which has each rank run the same command
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    done = imported(
        "import os, runpy; sys.argv[1:] = ['bad=override']\n"
        "atexit.register(lambda: print({k: v for k, v in os.environ.items() if 'ALLOC_CONF' in k}))\n"
        "runpy.run_path('train.py', run_name='__main__')"
    )
    assert ast.literal_eval(done.stdout) == expected
    assert done.stderr.splitlines()[-1] == ""  # nothing large, torch among it


def test_help_lists_the_options_without_anything_large():
    done = imported("sys.argv[1:] = ['--help']; import runpy; runpy.run_path('train.py', run_name='__main__')")
    assert "experiment/paper: " in done.stdout
    assert done.stderr.strip() == ""


def test_a_report_reads_results_without_what_makes_them():
    assert not {"transformers", "lightning", "vllm"} & set(imported("import apo_lab.commands.report").stderr.split())


def test_a_report_composes_the_defaults_of_training_while_hydra_runs(tmp_path):
    start_script("report", f"runs=[{tmp_path}]", f"output_dir={tmp_path / 'report'}").finish()
    assert (tmp_path / "report" / "report.html").is_file()


def test_the_names_of_the_composition_root_are_its_functions():
    # One has a module of its own name, which an import of that must not put in its place.
    assert all(callable(getattr(run, name)) for name in run.__all__)
    assert not hasattr(run, "nothing_of_that_name")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["experiment=paper/qwen_math7b_apoo"], ("no configs/experiment/paper/qwen_math7b_apoo.yaml", "7b_apo,")),
        (["experiment=null"], ("experiment=null: leave it out",)),
        (["-m", "experiment=glob(papr/*)"], ("experiment=glob(papr/*) matches none of lab/countdown",)),
        (["-m", "seed=glob(*)"], ("seed is no config group",)),
    ],
)
def test_a_mistyped_choice_is_one_line(arguments, words):
    done = imported(f"sys.argv[1:] = {arguments}; import runpy; runpy.run_path('train.py', run_name='__main__')")
    refusal, large = done.stderr.splitlines()
    assert (done.returncode, large) == (1, "")
    assert refusal.startswith("error: ")
    assert all(word in refusal for word in words)


def test_a_glob_over_the_papers_folder_is_its_19_experiments():
    key, _, experiments = expand_glob("experiment=glob(paper/*)").partition("=")
    assert key == "experiment"
    assert experiments.split(",") == sorted(f"paper/{name}" for name in PAPER)


def test_a_glob_leaves_other_arguments_alone():
    for argument in ("seed=1,2", "-m", "title=glob", "hydra/launcher=glob(*)"):
        assert expand_glob(argument) == argument


@pytest.mark.parametrize("engine", names("engine"))
def test_every_experiment_runs_with_every_engine(engine):
    for name in sorted(PAPER):
        cfg = composed(f"experiment=paper/{name}", f"engine={engine}", "kv_cache_gib=24.0")
        # One key for vLLM, whichever config names it.
        assert getattr(instantiate(cfg.engine), "kv_cache_gib", 24.0) == 24.0


@pytest.mark.parametrize("data", ["dapo17k", "gsm8k", "math"])
def test_benchmarks_to_validate_on_can_be_named_on_the_command_line(data):
    for override in ("data.validation={amc2023: /data/a.jsonl}", "+data.validation.amc2023=/data/a.jsonl"):
        assert dict(instantiate(composed(f"data={data}", override).data).validation) == {"amc2023": "/data/a.jsonl"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("experiment=paper/sensitivity_pull_0.0", "~data.validation", "algo=grpo"),
            ("algo.loss: ", "GRPO", "'pull_coef'"),
        ),
        (("~engine.sequences_per_batch",), ("engine: ", "TransformersEngine", "'sequences_per_batch'")),
        (("reward=callable", "reward.function._target_=rewarding.nobody"), ("reward.function._target_", "nobody")),
    ],
)
def test_a_node_that_does_not_fit_its_class_is_one_line(overrides, words):
    cfg = composed("model=tiny", *overrides, "engine=transformers", "trainer=cpu", "data=arithmetic", "callbacks=none")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Hydra makes of it
        prepare(cfg)
    message = user_message(caught.value)
    assert message is not None, repr(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words)


def test_a_type_error_inside_of_a_class_is_a_bug_and_shown_whole():
    node = {"_target_": "rewarding.even_start", "completions": [1]}
    with pytest.raises(InstantiationException, match="not subscriptable") as caught:
        instantiate(node)
    assert user_message(caught.value) is None
