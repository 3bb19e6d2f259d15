"""The tables and pages of published editions: of one registration, made after it, and each the other's.

docs/lab/protocol.md states the registrations, and the stages and predictions of the edition `full`.
"""

import functools
import hashlib
import re
import subprocess

import pandas as pd
import pytest

from apo_lab.editions.protocol import load_protocol
from apo_lab.laboratory.jobs import progress
from apo_lab.laboratory.published import RUN_COLUMNS
from apo_lab.laboratory.registration import registration
from apo_lab.reporting.laboratory import laboratory_report
from apo_lab.reporting.page import markdown_page
from benchmarks.laboratory.__main__ import report
from composing import ROOT, composed

FOLDERS = sorted(path.parent for path in (ROOT / "docs" / "lab").glob("*/runs.csv.gz"))
NAMES = [folder.name for folder in FOLDERS]
PAGE = (ROOT / "docs" / "lab" / "protocol.md").read_text()
FULL = load_protocol("full")


across = functools.cache(report)


@functools.cache
def registered(name):
    """The registration of an edition; all tasks are made for it."""
    return registration(load_protocol(name))


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_every_row_was_made_from_a_commit_that_has_the_registered_protocol(folder):
    protocol = f"src/apo_lab/editions/{folder.name}.yaml"
    runs = pd.read_csv(folder / "runs.csv.gz", keep_default_na=False)
    assert set(runs.registration) == {registered(folder.name)}
    for commit in set(runs.commit):
        assert re.fullmatch("[0-9a-f]{12}", commit), "the row is of a changed checkout"
        if git("rev-parse", "--is-shallow-repository").stdout.strip() == "false":
            assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
            assert git("show", f"{commit}:{protocol}").stdout == (ROOT / protocol).read_text()


@pytest.mark.parametrize("name", ["full", "longer", "cliff"])
def test_the_history_has_the_base_model_of_each_run(name):
    (commit,) = re.findall(r"git restore --source=(\w+) -- docs/lab/bases", PAGE)
    if git("cat-file", "-e", commit).returncode:
        pytest.skip("the clone is shallow")
    runs = pd.read_csv(ROOT / "docs" / "lab" / name / "runs.csv.gz")
    for world, sha256 in set(zip(runs.world, runs.base_sha256, strict=True)):
        path = f"docs/lab/bases/{world}/{world.partition('_')[0]}/model.safetensors"
        weights = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, check=True).stdout
        assert hashlib.sha256(weights).hexdigest() == sha256


def test_the_base_models_of_decoding_are_those_of_its_runs():
    runs = pd.read_csv(ROOT / "docs" / "lab" / "decoding" / "runs.csv.gz")
    for world, sha256 in set(zip(runs.world, runs.base_sha256, strict=True)):
        weights = (ROOT / "docs" / "lab" / "bases" / world / "locks" / "model.safetensors").read_bytes()
        assert hashlib.sha256(weights).hexdigest() == sha256


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_the_published_page_is_that_of_its_tables(folder):
    published = (folder / "report" / "report.md").read_text()
    (date,) = re.findall(r"^(\d{4}-\d\d-\d\d)\. ", published, flags=re.MULTILINE)
    protocol = load_protocol(folder.name)
    assert (
        markdown_page(laboratory_report(folder, protocol, date=date, registration=registered(folder.name))) == published
    )
    for figure in re.findall(r"\((figures/\S+\.svg)\)", published):
        assert (folder / "report" / figure).is_file()


@pytest.mark.long
@pytest.mark.slow(30)
def test_the_page_across_editions_is_that_of_their_tables():
    folder = ROOT / "docs" / "lab" / "across" / "report"
    assert markdown_page(across()) == (folder / "report.md").read_text()
    assert [figure.name for figure in across().figures if not (folder / f"figures/{figure.name}.svg").is_file()] == []


@pytest.mark.parametrize(
    "name", ["full", "longer", "cliff", "countdown_rates", "branches", "recipe", "sizes", "language"]
)
def test_the_page_has_the_registrations(name):
    """A change of protocol, decision code or tasks needs a new registration: no row made before it is used then."""
    assert f"| `{name}` | `{registered(name)}` |" in PAGE


def test_the_page_counts_the_runs_of_each_stage():
    cfg = composed("output_dir=outputs/lab", config_name="lab")
    for stage, (_, num_runs) in progress(cfg, FULL, pd.DataFrame(columns=list(RUN_COLUMNS))).items():
        assert f"| {stage} | {num_runs} |" in PAGE


def test_the_page_lists_every_prediction():
    for row in FULL.predictions:
        before, after = row.pair
        verdict = f"{row.expected} {'to' if row.expected == 'equivalent' else 'than'}"
        assert f"| {row.statement} | {row.source} | `{row.question}` | `{after}` {verdict} `{before}` |" in PAGE
