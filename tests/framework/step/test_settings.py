"""Every size that cannot work is refused in one line that names it."""

from dataclasses import replace

import pytest

from apo_lightning.errors import ConfigError
from apo_lightning.run.training import prepare
from composing import composed
from factories import SETTINGS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prompts_per_step", 0),
        ("prompts_per_minibatch", 3),
        ("temperature", 0.0),
        ("aggregation", "mean"),
        ("old_logprobs", "engine"),
        ("gradient_clip_norm", -1.0),
        ("max_nonfinite_steps", 0),
    ],
)
def test_a_bad_size_is_refused_by_name_and_value(key, value):
    with pytest.raises(ConfigError, match=rf"{key} is '?{value}") as caught:
        replace(SETTINGS, **{key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_a_cut_of_the_sampled_distribution_is_refused_in_training(key):
    """Hydra adds what is typed with a plus, and a run that ignored it would not be the run that was asked for."""
    with pytest.raises(ConfigError, match=rf"^{key} is 0.9: training samples without truncation.*top_p\)$"):
        prepare(composed(f"+{key}=0.9", "model=tiny"))
    assert composed("top_p=0.9", config_name="evaluate").top_p == 0.9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("importance=token_truncate", "old_logprobs=rollout"),
            "importance is token_truncate with old_logprobs=rollout",
        ),
        (("importance_bounds=2.0",), r"importance is None \(bounds 2.0\): choose one of token_truncate,"),
        (("importance=truncate",), "importance is truncate"),
    ],
)
def test_a_correction_that_cannot_be_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        prepare(composed(*options, "model=tiny"))


def test_bounds_are_read_as_yaml_has_them():
    loss = prepare(composed("importance=token_mask", "importance_bounds=[0.8,1.25]", "model=tiny")).loss
    assert (loss.importance.mode, list(loss.importance.bounds)) == ("token_mask", [0.8, 1.25])
