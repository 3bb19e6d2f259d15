"""What an evaluation's configuration comes to, before anything is loaded."""

import json
from dataclasses import replace

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.run.evaluated_policy import find_evaluated_policy
from apo_lightning.run.tasks import prepare_tasks
from composing import composed


def batch_on(device, *overrides):
    cfg = composed("model=tiny", "limit=1", *overrides, config_name="evaluate")
    evaluated = replace(find_evaluated_policy(cfg, []), device=torch.device(device))
    [task] = prepare_tasks(cfg, evaluated, "transformers")
    return task.settings.samples_per_batch


def test_a_gpu_is_given_more_at_once_than_a_cpu():
    assert batch_on("cpu") == 256
    assert batch_on("cuda") == 4096
    assert batch_on("cuda", "samples_per_batch=7") == 7


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("samples_per_batch=0", "samples_per_batch is 0: it must be at least 1"),
        ("temperature=null", "temperature is None: it must be at least 0"),
        ("tokens_per_microbatch=null", "tokens_per_microbatch is None: it must be at least 1"),
    ],
)
def test_what_is_too_small_or_not_given_is_refused(override, words):
    with pytest.raises(ConfigError, match=words):
        batch_on("cpu", override)


def test_equal_samples_and_repeated_problems_are_told_before_anything_is_loaded(tmp_path, capsys):
    rows = [("1 + 1", "2"), ("1+1", "2"), ("2 + 2", "4"), ("2 + 2", "5"), ("3 + 2", "5")]
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in rows))
    own = "benchmark.arithmetic"
    batch_on("cpu", f"{own}.path={problems}", f"{own}.num_problems=5", "limit=null", "num_samples=8", "temperature=0")
    assert capsys.readouterr().out.splitlines() == [
        "arithmetic: 2 problems occur more than once (4 of 5 rows), 1 with different answers",
        "arithmetic: at temperature=0 the 8 samples of a problem are equal, and pass@k is pass@1: give num_samples=1",
    ]
