"""A value that its annotation excludes is refused by its key; what may be one of several kinds is not."""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from omegaconf import DictConfig, OmegaConf

from apo_lightning.errors import ConfigError
from apo_lightning.run.settings import ANNOTATIONS, check_values
from composing import composed


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed=a", "seed is 'a': it should be a valid integer"),
        ("seed=null", "seed is null: it should be a valid integer"),
        ("prompts_per_step=1.5", "prompts_per_step is 1.5: it should be a valid integer"),
        ("temperature=warm", "temperature is 'warm': it should be a valid number"),
        ("optimizer.lr=1e-6x", "optimizer.lr is '1e-6x': it should be a valid number"),
        ("optimizer.lr=null", "optimizer.lr is null: it should be a valid number"),  # may also be a tensor
        ("algo.loss.clip_eps_high=x", "algo.loss.clip_eps_high is 'x': it should be a valid "),
        ("algo.loss.exclude_sampled=no", "algo.loss.exclude_sampled is 'no': it should be a valid boolean"),
        ("trainer.max_steps=1e3", "trainer.max_steps is 1000.0: it should be a valid integer"),
        ("trainer.max_steps=null", "trainer.max_steps is null: it should be a valid integer"),
        # Taken for a list it would be its letters, each of them a token.
        ("model.stop_tokens=abc", "model.stop_tokens is 'abc': "),
        ("kv_cache_gib=x", "engine.vllm.kv_cache_gib is 'x': it should be a valid "),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(override, line):
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}"):
        check_values(composed(override), ANNOTATIONS)


def test_numbers_and_null_where_null_is_an_option_pass():
    typed = ("gradient_clip_norm=null", "temperature=1", "optimizer.lr=1e-5", "trainer.max_steps=1000")
    cfg = composed(*typed, "importance_bounds=[0.5,2]", "checkpoint.save_every=null", "trainer.devices=auto")
    check_values(cfg, ANNOTATIONS)


@dataclass(kw_only=True)
class Sizes:
    steps: int = 1
    shares: tuple[float, ...] = ()


class Plain:
    def __init__(self, rate: float, count: int = None, when: int | timedelta = 1, mode: int | Literal["all"] = 1):  # noqa: RUF013 - as others write it
        pass


class Unresolved:
    def __init__(self, rate: "Nowhere", count: int = 1):
        pass


def function(*, size: int | str | Path, rest: Any = None) -> None:
    pass


def node(of: Any, **values: Any) -> DictConfig:
    return OmegaConf.create({"node": {"_target_": f"{__name__}.{of.__name__}", **values}})


@pytest.mark.parametrize(
    ("cfg", "line"),
    [
        (node(Sizes, steps="many"), "node.steps is 'many'"),
        (node(Plain, rate=None), "node.rate is null"),
        (node(Plain, when="later"), "node.when is 'later'"),
        (OmegaConf.create({"nodes": [node(Sizes, steps="x").node]}), "nodes.0.steps is 'x'"),
    ],
)
def test_annotations_are_found_wherever_they_stand(cfg, line):
    with pytest.raises(ConfigError, match=f"^{line}: it should be"):
        check_values(cfg, {})


@pytest.mark.parametrize(
    "cfg",
    [
        node(Sizes, steps=2, shares=[0.5, 0.5]),
        node(Plain, rate=1, count=None, mode="all"),
        node(Unresolved, rate="x", count="x"),  # its annotations cannot be read, so that none is judged
        node(function, size="large", rest="x"),
        OmegaConf.create({"node": {"_target_": "no.such.thing", "size": "x"}}),
    ],
)
def test_what_is_of_another_allowed_kind_or_not_annotated_is_let_through(cfg):
    check_values(cfg, {})
