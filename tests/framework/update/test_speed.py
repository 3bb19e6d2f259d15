"""Rates of a step."""

from apo_lightning.model.flops import ModelSize, Work
from apo_lightning.update.speed import speed_metrics


def test_without_a_peak_there_is_no_utilisation():
    size = ModelSize(layer_weights=1, head_weights=1, attention_width=1)
    assert speed_metrics(8, Work(num_tokens=6), size, None, {"update": 2.0, "step": 4.0}) == {
        "perf/tokens_per_second": 2.0,
        "perf/update_tokens_per_second": 3.0,
    }
