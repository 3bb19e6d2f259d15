"""Rates of a step."""

from apo_lightning.model.flops import ModelSize, Work
from apo_lightning.step.step_metrics import StepWork, speed_metrics


def test_without_a_peak_there_is_no_utilisation():
    size = ModelSize(layer_weights=1, head_weights=1, attention_width=1)
    work = StepWork(num_sampled=8, update=Work(num_tokens=6), max_rank_tokens=6, num_ranks=1)
    assert speed_metrics(work, size, None, {"update": 2.0, "step": 4.0}) == {
        "perf/tokens_per_second": 2.0,
        "perf/tokens_per_second_per_device": 2.0,
        "perf/update_tokens_per_second": 3.0,
        "perf/rank_tokens_mean": 6.0,
        "perf/rank_tokens_max": 6.0,
    }


def test_the_busiest_rank_and_the_mean_of_the_ranks_are_told_apart():
    size = ModelSize(layer_weights=1, head_weights=1, attention_width=1)
    work = StepWork(num_sampled=90, update=Work(num_tokens=60), max_rank_tokens=30, num_ranks=3)
    metrics = speed_metrics(work, size, None, {"update": 2.0, "step": 10.0})
    assert metrics["perf/tokens_per_second_per_device"] == 3.0  # 90 tokens in 10 s on 3 devices
    assert (metrics["perf/rank_tokens_mean"], metrics["perf/rank_tokens_max"]) == (20.0, 30.0)
