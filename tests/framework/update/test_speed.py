"""Rates of a step."""

from apo_lightning.model.flops import Work
from apo_lightning.update.speed import Speed


def test_without_a_peak_there_is_no_utilisation():
    speed = Speed(num_sampled=8, update=Work(num_tokens=6))
    assert speed.metrics({"update": 2.0, "step": 4.0}) == {
        "perf/tokens_per_second": 2.0,
        "perf/update_tokens_per_second": 3.0,
    }
