"""Rates of a step."""

from apo_lightning.model.flops import ModelSize, Work
from apo_lightning.step.step_metrics import StepWork, speed_metrics


def test_without_a_peak_there_is_no_utilisation_and_the_busiest_rank_and_the_mean_are_told_apart():
    size = ModelSize(layer_weights=1, head_weights=1, attention_width=1)
    work = StepWork(num_sampled=90, update=Work(num_tokens=60), max_rank_tokens=30, num_ranks=3)
    assert speed_metrics(work, size, None, {"update": 2.0, "step": 10.0}) == {
        "perf/tokens_per_second": 9.0,
        "perf/tokens_per_second_per_device": 3.0,  # 90 tokens in 10 s on 3 devices
        "perf/update_tokens_per_second": 30.0,
        "perf/rank_tokens_mean": 20.0,
        "perf/rank_tokens_max": 30.0,
    }
