"""What an evaluation's configuration comes to, before anything is loaded."""

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
