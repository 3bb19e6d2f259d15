"""A base model is made once for a configuration, and measured exactly."""

import pytest

from apo_lab.pretraining.base_models import pretrain, read_record
from apo_lightning.errors import ConfigError
from composing import composed

SMALL = (
    *("data=locks", "data.num_validation=8"),
    *("pretraining.num_steps=2", "pretraining.scheduler.num_warmup_steps=1", "pretraining.demonstrations_per_batch=8"),
)


def test_a_base_model_is_made_once_and_again_for_another_configuration(tmp_path):
    def made(*overrides: str) -> int:
        folder = pretrain(composed(*SMALL, f"output_dir={tmp_path}", *overrides, config_name="pretrain"))
        record = read_record(folder)
        assert record is not None
        assert 0 <= record["metrics"]["pass@1"] <= record["metrics"]["pass@8"] <= 1
        return (folder / "model.safetensors").stat().st_mtime_ns

    first = made()
    assert made() == first
    assert made("seed=3") > first


@pytest.mark.parametrize(("data", "width"), [("countdown", 96), ("locks", 64), ("divisors", 64)])
def test_a_puzzle_without_settings_of_its_own_has_the_default_ones(data, width):
    cfg = composed(f"data={data}", config_name="pretrain")
    assert cfg.pretraining.model.config.hidden_size == width


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data=arithmetic", "pretraining=locks"), "base models need a puzzle, give data=locks or another"),
        (("pretraining.model.compile_layers=true",), "pretraining.model.compile_layers is true"),
    ],
)
def test_what_makes_no_base_model_is_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        pretrain(composed(f"output_dir={tmp_path}", *overrides, config_name="pretrain"))
