"""Rates of a device: those of the table, and those that are measured."""

import itertools
import time
from dataclasses import replace

import pytest
import torch
from hydra.utils import instantiate

from apo_lightning.errors import ConfigError
from apo_plan.rates import measured_rates, seconds_of
from composing import composed, names


@pytest.mark.parametrize("option", [name for name in names("rates") if name != "measured"])
def test_every_gpu_of_the_table_has_rates_and_a_rate_of_zero_is_named(option):
    rates = instantiate(composed(f"rates={option}", config_name="preflight").rates)
    assert 1e14 < rates.model_flops_per_second < 1e15
    with pytest.raises(ConfigError, match=r"rates\.memory_bytes_per_second is 0"):
        replace(rates, memory_bytes_per_second=0)


def test_rates_are_the_median_of_repeats(monkeypatch):
    # one that warms up, and nine of 1 s and more: the fifth of them counts, not the fastest
    ticks = itertools.accumulate(itertools.chain.from_iterable((1, s) for s in (100.0, 5, 1, 9, 3, 7, 2, 8, 4, 6)))
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert seconds_of(lambda: None, torch.device("cpu")) == 5


def test_a_rate_is_looked_at_for_a_second(monkeypatch):
    # ticks of 1/64 s: one that warms up, and as many as make a second of all
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 64)
    calls = []
    assert seconds_of(lambda: calls.append(None), torch.device("cpu")) == 1 / 64
    assert len(calls) == 64


def test_rates_are_measured_here():
    rates = measured_rates(torch.device("cpu"), torch.float32)
    assert 1e9 < rates.model_flops_per_second < 1e14
    assert 1e8 < rates.memory_bytes_per_second < 1e13
