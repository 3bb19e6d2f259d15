"""What is no number where a number is needed is refused by its key; what may be one of several kinds is not."""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
from omegaconf import DictConfig, OmegaConf

from apo_lightning.errors import ConfigError
from apo_lightning.run.tasks import COUNTS
from apo_lightning.run.value_types import check_arguments, check_numbers
from apo_lightning.step.settings import StepSettings
from composing import composed

OF_TRAINING = {"seed": int, **get_type_hints(StepSettings)}


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed=a", "seed is 'a': give a whole number"),
        ("prompts_per_step=1.5", "prompts_per_step is 1.5: give a whole number"),
        ("temperature=warm", "temperature is 'warm': give a number"),
        ("optimizer.lr=1e-6x", "optimizer.lr is '1e-6x': give a number"),
        ("averaging.weight=half", "averaging.weight is 'half': give a number"),
        ("group_size=[4,8]", "group_size is [4, 8]: give a whole number"),
    ],
)
def test_what_the_primary_configuration_has_as_a_number_must_be_one(override, line):
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        check_numbers(composed(override), "train")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("algo.loss.pull_coef=abc", "algo.loss.pull_coef is 'abc': give a number"),
        ("algo.loss.clip_eps_high=x", "algo.loss.clip_eps_high is 'x': give a number"),
        ("trainer.max_steps=1e3", "trainer.max_steps is 1000.0: give a whole number"),
        ("trainer.max_steps=null", "trainer.max_steps is null: give a whole number"),
        ("data.num_validation=all", "data.num_validation is 'all': give a whole number"),
        ("optimizer.lr=null", "optimizer.lr is null: give a number"),  # of torch, where it may also be a tensor
        ("group_size=null", "group_size is null: give a whole number"),
        ("seed=null", "seed is null: give a whole number"),
        ("data.max_operand=[1,2]", "data.max_operand is [1, 2]: give a whole number"),
        ("trainer.max_steps={a: 1}", "trainer.max_steps is {'a': 1}: give a whole number"),
        ("algo.loss.exclude_sampled=no", "algo.loss.exclude_sampled is 'no': give true or false"),
        ("kv_cache_gib=x", "engine.vllm.kv_cache_gib is 'x': give a number"),
    ],
)
def test_what_a_class_annotates_as_a_number_must_be_one(override, line):
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        check_arguments(composed(override), OF_TRAINING)


@pytest.mark.parametrize("name", COUNTS)
def test_what_an_evaluation_takes_as_a_count_must_be_one(name):
    root = dict.fromkeys(COUNTS, int | None)
    check_arguments(composed(f"{name}=null", config_name="evaluate"), root)
    with pytest.raises(ConfigError, match=f"^{name} is 'all': give a whole number$"):
        check_arguments(composed(f"{name}=all", config_name="evaluate"), root)


def test_numbers_and_null_where_null_is_an_option_pass():
    typed = ("gradient_clip_norm=null", "temperature=1", "optimizer.lr=1e-5", "trainer.max_steps=1000")
    cfg = composed(*typed, "importance_bounds=[0.5,2]", "checkpoint.save_every=null", "trainer.devices=auto")
    check_numbers(cfg, "train")
    check_arguments(cfg, OF_TRAINING)


@dataclass(kw_only=True)
class Parent:
    steps: int = 1


@dataclass(kw_only=True)
class Child(Parent):
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
        (node(Child, steps="many"), "node.steps is 'many': give a whole number"),
        (node(Plain, rate="high"), "node.rate is 'high': give a number"),
        (node(Plain, rate=None), "node.rate is null: give a number"),
        (node(Plain, count=1.5), "node.count is 1.5: give a whole number"),
        (node(Plain, when="later"), "node.when is 'later': give a whole number"),
        (OmegaConf.create({"nodes": [node(Parent, steps="x").node]}), "nodes.0.steps is 'x': give a whole number"),
    ],
)
def test_annotations_are_found_wherever_they_stand(cfg, line):
    with pytest.raises(ConfigError, match=f"^{line}$"):
        check_arguments(cfg, {})


@pytest.mark.parametrize(
    "cfg",
    [
        node(Child, steps=2, shares=[0.5, 0.5]),
        node(Plain, rate=1, count=None, mode="all"),
        node(Unresolved, rate="x", count="x"),  # its annotations cannot be read, so that none is judged
        node(function, size="large", rest="x"),
        OmegaConf.create({"node": {"_target_": "no.such.thing", "size": "x"}}),
        OmegaConf.create({"size": "x", "seed": 1}),
    ],
)
def test_what_is_of_another_allowed_kind_or_not_annotated_is_let_through(cfg):
    check_arguments(cfg, {})
