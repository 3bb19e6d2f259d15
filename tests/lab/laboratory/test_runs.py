"""An edition end to end: a base model, tuning, runs that use its choice, averages, tables."""

import gzip
import json
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from apo_lab.laboratory.command import laboratory
from apo_lab.laboratory.published import CURVE_COLUMNS, RUN_COLUMNS, Rows, append, read_runs
from apo_lightning.common.files import LOCK, folder_locked
from composing import composed
from miniature_edition import MINIATURE
from processes import start_script

KEY = ["world", "method", "variant", "seed"]
MENU = ["+first_mixture", "+first_temperature", "+mixture", "+temperature"]


@pytest.mark.long
@pytest.mark.slow(60)
def test_an_edition_from_its_base_model_to_its_tables_and_page(tmp_path, monkeypatch, capsys):
    """In one test, since a fixture would make all runs once in every process that tests."""
    edition = tmp_path / "mine.yaml"
    edition.write_text(MINIATURE)
    arguments = (f"edition={edition}", f"output_dir={tmp_path}/lab", f"bases={tmp_path}/bases")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which it sets for its workers
    laboratory(composed(*arguments, config_name="lab"))
    said = capsys.readouterr().out
    tables = tmp_path / "lab" / "tables"
    runs = pd.read_csv(tables / "runs.csv.gz", keep_default_na=False)
    assert "tuning          0 of    2 runs done" in said
    parts = [f"+average_{part}" for part in ("first", "last", "middle", "outside")]
    of_apo, of_grpo = (
        [method + after for method in (name,) for after in sorted(["", "+average", *MENU, *more])]
        for name, more in (("apo", []), ("grpo", parts))
    )
    assert sorted(runs.method) == ["apo", "apo", *of_apo, *of_grpo, "strong", "wide"]
    tuning = runs[runs.stage == "tuning"]
    best = tuning.variant[tuning.area.idxmax()]
    assert set(runs.variant[runs.method == "apo+average"]) == {best}
    assert (tmp_path / "lab" / "report" / "report.html").is_file()

    the_row_is_that_of_the_run(tmp_path / "lab", runs)
    averages_lead_from_the_base_to_the_last_policy(tables, runs)
    decodings_are_those_of_plain_forwards(tmp_path / "lab", tmp_path / "bases", tables)
    log_probs_are_deleted_and_weights_stay(tmp_path / "lab")
    a_row_is_that_of_the_run_made_again(tables, arguments)

    (tmp_path / "lab" / "tables" / "before.csv").write_bytes((tables / "runs.csv.gz").read_bytes())
    assert "parts           2 of    2 runs done" in start_script("lab", *arguments).finish()
    assert (tables / "runs.csv.gz").read_bytes() == (tables / "before.csv").read_bytes()
    assert "main            2 of    2 runs done" in start_script("lab", "status", *arguments).finish()


def a_row_is_that_of_the_run_made_again(tables, arguments):
    words = ("lab", "verify", *arguments, "only=[wide]")
    assert start_script(*words).finish().count(" checked ") == 2  # numbers and hashes
    before = (tables / "runs.csv.gz").read_bytes()
    rows = pd.read_csv(tables / "runs.csv.gz", dtype=str, keep_default_na=False)
    rows.loc[rows.method == "wide", "pass@64"] = "0.5"
    (tables / "runs.csv.gz").write_bytes(gzip.compress(rows.to_csv(index=False).encode()))
    changed = start_script(*words)
    assert changed.wait() == [1]
    assert "pass@64 is 0.5 there and" in changed.said
    (tables / "runs.csv.gz").write_bytes(before)


def the_row_is_that_of_the_run(lab, runs):
    folder = lab / "small" / "grpo" / "default" / "seed_1"
    last = json.loads((folder / "exact" / "metrics.jsonl").read_text().splitlines()[-1])
    row = runs[runs.method == "grpo"].iloc[0]
    for name in ("pass@1", "pass@64", "alive"):
        assert row[name] == pytest.approx(last[name], rel=1e-5)
    # 2 steps × 64 prompts × 8 completions, of at most 4 tokens.
    assert 2 * 64 * 8 < row.tokens_sampled <= 4 * 2 * 64 * 8
    assert 0 <= row.tokens_trained < row.tokens_sampled  # completions without a gradient are not trained
    # The mean without each of 16 blocks of one problem is, over the blocks, the mean of all.
    without = [row[f"last_without_{block}"] for block in range(16)]
    assert np.mean(without) == pytest.approx(row["pass@64"], abs=1e-5)


def averages_lead_from_the_base_to_the_last_policy(tables, runs):
    curves = pd.read_csv(tables / "curves.csv.gz")
    path = curves[curves.method == "grpo+average"]
    trained = curves[curves.method == "grpo"]
    assert path.base_weight.tolist() == [1.0, 0.5, 0.0]
    assert path["pass@1"].iloc[0] == trained["pass@1"].iloc[0]
    assert path["pass@1"].iloc[-1] == trained["pass@1"].iloc[-1]
    assert set(runs.weights_sha256[runs.method == "grpo"]) == set(runs.weights_sha256[runs.method == "grpo+average"])
    for part in ("first", "middle", "last", "outside"):
        of_part = curves[curves.method == f"grpo+average_{part}"]
        assert of_part.base_weight.tolist() == [1.0, 0.5, 0.0]
        assert of_part["forced_pass@1"].iloc[-1] == trained["forced_pass@1"].iloc[-1]
        assert runs.area[runs.method == f"grpo+average_{part}"].tolist() == [""]  # it begins elsewhere than the base
    changes = trained[["locked", "opened", "forgotten", "learnt"]].sum(axis=1)
    assert changes.to_numpy() == pytest.approx(trained["pass@64"] - trained["pass@64"].iloc[0], abs=1e-5)


def decodings_are_those_of_plain_forwards(lab, bases, tables):
    """pass@1 of each setting: from the models' own files, an answer at a time, in float64."""
    curves, run = pd.read_csv(tables / "curves.csv.gz"), lab / "small" / "grpo" / "default" / "seed_1"
    content = json.loads((run / "exact" / "answers.json").read_text())["problems"]
    folders = {"own": run / "checkpoints" / "final", "base": bases / "small" / "locks"}
    models = {name: AutoModelForCausalLM.from_pretrained(path).double().eval() for name, path in folders.items()}
    tokenizer = AutoTokenizer.from_pretrained(folders["base"])

    @torch.no_grad()
    def probs(name, temperature):
        """Of the tokens of each valid answer [answers, 4]."""
        found = []
        for row in content:
            for text in (text for text, _, is_valid in row["answers"] if is_valid):
                prompt, answer = (
                    tokenizer(each, add_special_tokens=False)["input_ids"] for each in (row["problem"], text)
                )
                ids = torch.tensor([[*prompt, *answer, tokenizer.eos_token_id]])
                dist = torch.softmax(models[name](ids).logits[0, len(prompt) - 1 : -1] / temperature, dim=-1)
                found.append(dist.gather(1, ids[0, len(prompt) :, None])[:, 0])
        return torch.stack(found)

    own, base, hot = probs("own", 1.0), probs("base", 1.0), probs("own", 2.0)
    half = (own + base) / 2
    first = torch.tensor([True, False, False, False])
    expected = {
        "+temperature": [hot, own],
        "+first_temperature": [torch.where(first, hot, own), own],
        "+mixture": [base, half, own],
        "+first_mixture": [torch.where(first, base, own), torch.where(first, half, own), own],
    }
    for name, tokens in expected.items():
        rows = curves[curves.method == f"grpo{name}"]
        ones = [each.prod(1).sum().item() / len(content) for each in tokens]
        assert rows["pass@1"].to_numpy() == pytest.approx(ones, rel=1e-3)
        settings = rows["temperature" if "temp" in name else "base_weight"].tolist()
        assert settings == ([2.0, 1.0] if "temp" in name else [1.0, 0.5, 0.0])


def log_probs_are_deleted_and_weights_stay(lab):
    assert not list(lab.rglob("step_*.npz"))
    assert len(list(lab.rglob("checkpoints/final/model.safetensors"))) == 6


@pytest.mark.slow(20)
def test_a_second_laboratory_is_refused_where_one_is_at_work_and_may_count_its_runs(tmp_path):
    edition, tables, runs = tmp_path / "mine.yaml", tmp_path / "tables", tmp_path / "lab"
    edition.write_text(MINIATURE)
    words = (f"edition={edition}", f"bases={tmp_path}/bases")
    command = [sys.executable, "-m", "apo_lightning", "lab", *words, f"tables={tables}", f"output_dir={runs}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as first:
        try:
            while not all((folder / LOCK).exists() for folder in (tables, runs)):
                assert first.poll() is None
                time.sleep(0.05)
            for own, folder in (((tables, tmp_path / "lab2"), tables), ((tmp_path / "tables2", runs), runs)):
                second = start_script("lab", *words, f"tables={own[0]}", f"output_dir={own[1]}")
                assert second.wait() == [1]
                said = f"another apo lab is at work in {folder}: wait for it, or give other tables= and output_dir="
                assert second.said == f"error: {said}\n"
            status = start_script("lab", "status", *words, f"tables={tables}", f"output_dir={runs}")
            assert "main            0 of    2 runs done" in status.finish()
            assert first.poll() is None
        finally:
            first.kill()
    with folder_locked(tables, "taken"), folder_locked(runs, "taken"):  # as another laboratory does
        pass


def test_rows_are_added_once_and_read_back(tmp_path):
    key = {"world": "w", "method": "m", "variant": "", "seed": 1}
    run = {**dict.fromkeys(RUN_COLUMNS, 0.5), **key, "registration": "r"}
    curve = dict.fromkeys(CURVE_COLUMNS, 0.25) | key
    append(tmp_path, Rows(runs=[run], curves=[curve, {**curve, "step": 2}]))
    append(tmp_path, Rows(runs=[{**run, "seed": 2}], curves=[{**curve, "seed": 2}]))
    # As after a kill between the tables: the curve is there, the run is not.
    append(tmp_path, Rows(runs=[{**run, "seed": 3}], curves=[{**curve, "seed": 2}]))
    append(tmp_path, Rows(runs=[{**run, "registration": "other"}], curves=[]))
    assert read_runs(tmp_path, "r").seed.tolist() == [1, 2, 3]
    assert read_runs(tmp_path, "other").seed.tolist() == [1]
    found = pd.read_csv(tmp_path / "curves.csv.gz")[["seed", "step"]].to_numpy().tolist()
    assert found == [[1, 0.25], [1, 2], [2, 0.25]]
