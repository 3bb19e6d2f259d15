"""Every size that cannot work is refused in one line that names it."""

import pytest

from apo_lightning.errors import ConfigError
from apo_lightning.run.training import prepare
from apo_lightning.step.settings import StepSettings
from composing import composed

GOOD = {
    "prompts_per_step": 4,
    "group_size": 2,
    "prompts_per_minibatch": 2,
    "tokens_per_microbatch": 64,
    "max_prompt_tokens": 8,
    "max_completion_tokens": 8,
    "temperature": 1.0,
    "aggregation": "token_mean",
    "old_logprobs": "trainer",
    "importance": None,
    "importance_bounds": None,
    "scored_fraction": 0.015625,
    "gradient_clip_norm": 1.0,
    "max_nonfinite_steps": 3,
    "validation_samples": 1,
}


def test_a_step_counts_its_optimizer_steps():
    assert StepSettings(**GOOD).minibatches_per_step == 2
    assert StepSettings(**GOOD).max_model_len == 16


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prompts_per_step", 0),
        ("prompts_per_minibatch", 3),
        ("temperature", 0.0),
        ("aggregation", "mean"),
        ("old_logprobs", "engine"),
        ("importance", "truncate"),
        ("gradient_clip_norm", -1.0),
        ("max_nonfinite_steps", 0),
    ],
)
def test_a_bad_size_is_refused_by_name_and_value(key, value):
    with pytest.raises(ConfigError, match=rf"{key} is '?{value}") as caught:
        StepSettings(**{**GOOD, key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_a_cut_of_the_sampled_distribution_is_refused_in_training(key):
    """Hydra adds what is typed with a plus, and a run that ignored it would not be the run that was asked for."""
    with pytest.raises(ConfigError, match=rf"^{key} is 0.9: training samples from the whole distribution.*top_p\)$"):
        prepare(composed(f"+{key}=0.9", "model=tiny"))
    assert composed("top_p=0.9", config_name="evaluate").top_p == 0.9


def test_a_correction_that_would_be_one_everywhere_is_refused():
    corrected = {**GOOD, "importance": "token_truncate"}
    with pytest.raises(ConfigError, match=r"importance is token_truncate with old_logprobs=rollout: .* weight .* is 1"):
        StepSettings(**{**corrected, "old_logprobs": "rollout"})
    with pytest.raises(ConfigError, match=r"^importance_bounds is -1 with importance=token_truncate: give a number"):
        StepSettings(**{**corrected, "importance_bounds": -1})
    with pytest.raises(ConfigError, match=r"^importance is None \(bounds 2.0\): choose one of token_trun"):
        StepSettings(**{**GOOD, "importance_bounds": 2.0})
    assert StepSettings(**corrected).importance == "token_truncate"


def test_bounds_are_read_as_yaml_has_them():
    settings = prepare(composed("importance=token_mask", "importance_bounds=[0.8,1.25]", "model=tiny")).settings
    assert settings.importance_bounds == [0.8, 1.25]
