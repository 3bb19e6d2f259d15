"""The protocol of an edition: worlds, arms, stages, comparisons and predictions, read from one YAML file."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from apo_lightning.errors import ConfigError

ENDPOINTS = ("area", "passage", "last", "entered", "locked_share")
"""Names that a question may give as its `endpoint`."""
OF_ENTRANCES = ("entered", "locked_share")
"""Those of them that are about entrances, not about pass@64."""
UNITS = ("run", "instance")
"""Values of a question's `unit`."""
BLOCKS = 16
"""Blocks that problems are dealt into, for the variance over problems."""
AVERAGED = "+average"
"""After a method's name: its last policy, averaged with the base model; its path goes over the base's weight. After it
may come `_` and a part of the model, which alone is averaged: `grpo+average_last`."""
AVERAGED_PARTS = ("first", "middle", "last", "outside")
"""The parts of a model whose averages can be measured alone: `apo_lightning.model.average.PARTS` without all."""
SPLIT = "+split"
DECODINGS = {
    "": "none",
    "+temperature": "temperature",
    "+first_temperature": "temperature of the first token",
    "+mixture": "tokens mixed with the base's",
    "+first_mixture": "first token mixed with the base's",
    AVERAGED: "weights averaged with the base's",
    SPLIT: "half of the samples from the base",
}
"""After a method's name: a way to draw 64 samples, of which the best at L* is `DECODED`. `""` and `SPLIT` follow the
path of training, the others go through settings of the last policy."""
DECODED, ALIKE = "+decoded", "+decoded_alike"
"""The second is the best of those that draw all samples alike: all but `SPLIT`."""
HALF = "half"
"""In place of the first method of a pair: the value one half, of every run."""


def method_of(name: str) -> str:
    """The method of an average or another decoding, or the name itself: `grpo+average_last` → `grpo`."""
    return name.partition("+")[0]


def averages_of(name: str, parts: Sequence[str]) -> list[str]:
    """The names of a method's averages: of all weights, then of each part.

    Example:
        >>> averages_of("grpo", ["last"])
        ['grpo+average', 'grpo+average_last']
    """
    return [name + AVERAGED, *(f"{name}{AVERAGED}_{part}" for part in parts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What methods are run on: a puzzle, a base model and the settings of a run."""

    name: str
    family: str
    """Worlds of one family share the tuned settings of each method."""
    level: float
    """L*, the pass@1 up to which the area under pass@64 is taken, in (0, 1]."""
    base: tuple[str, ...] = ()
    """Overrides of `apo pretrain`; none: the model is pretrained."""
    run: tuple[str, ...]
    """Overrides of `apo train`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A method with its settings."""

    method: str
    overrides: tuple[str, ...]
    """Overrides of `apo train`; the first chooses the algorithm."""

    @property
    def variant(self) -> str:
        """Short text of the settings: the last part of each key with its value, without the algorithm.

        Example:
            >>> Arm(method="apo", overrides=("algo=apo", "optimizer.lr=0.0003", "algo.loss.pull_coef=0.2")).variant
            'lr=0.0003 pull_coef=0.2'
        """
        settings = (override.partition("=") for override in self.overrides[1:])
        return " ".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedMethod:
    """A method, and the configurations among which its settings are chosen."""

    name: str
    overrides: tuple[str, ...]
    rates: Mapping[str, tuple[float, ...]]
    """Family → learning rates."""
    key: str = ""
    """The configuration key of its own coefficient."""
    values: tuple[Any, ...] = ()
    settings: tuple[tuple[str, ...], ...] = ()
    """In place of `key` and `values`: overrides, for a method with several coefficients or with none."""

    def arms(self, family: str) -> list[Arm]:
        """Every rate with every value."""
        settings = self.settings or [(f"{self.key}={value}",) for value in self.values]
        return [
            Arm(method=self.name, overrides=(*self.overrides, f"optimizer.lr={rate}", *own))
            for rate, own in itertools.product(self.rates[family], settings)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Arms that are run in some worlds, each with some seeds."""

    name: str
    seeds: Mapping[str, tuple[int, ...]]
    """World → training seeds."""
    methods: tuple[str, ...] = ()
    """Tuned methods: all their configurations in the stage `tuning`, elsewhere the chosen one."""
    like: str | None = None
    """The tuned method whose rate and coefficient the `arms` start from; None: from none."""
    rate_of: str | None = None
    """The tuned method whose rate alone the `arms` have, since they are other algorithms; None: their own."""
    arms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name → overrides, for arms that are not tuned."""
    overrides: tuple[str, ...] = ()
    """Overrides of every run of the stage."""
    is_averaged: bool = False
    """Whether the path of averages of each last policy with the base model is measured."""
    averaged_by_part: tuple[str, ...] = ()
    """Methods and arms of which the paths of averages of each part of the model are measured too."""
    is_decoded: bool = False
    """Whether each last policy is measured under all `DECODINGS`."""

    @property
    def tries_all(self) -> bool:
        """Whether it runs every configuration of its methods, to choose their settings."""
        return self.name == "tuning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A family of comparisons, decided together."""

    key: str
    text: str
    stage: str
    worlds: tuple[str, ...]
    """Compared as one, each with its own seeds."""
    pairs: tuple[tuple[str, str], ...]
    """(before, after): names of methods or arms."""
    endpoint: str = "area"
    """What is compared: `area`; at the last step pass@64, `last`; where pass@1 first reaches L*, pass@64, `passage`,
    the share of a problem's entrances that 64 samples take, `entered`, and the share of the loss of pass@64 that is
    locked and not forgotten, `locked_share`."""
    unit: str = "run"
    """What is independent: `run`, for `verdicts.compare`, or `instance`, for `verdicts.compare_instances`, which takes
    one value from each world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A verdict that was expected before the runs."""

    question: str
    pair: tuple[str, str]
    expected: str
    """`higher`, `lower` or `equivalent`: the second method against the first."""
    source: str
    """`paper`, `theory` or `ours`."""
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """Everything that decides an edition's runs and verdicts."""

    name: str
    margin: float
    """Half-width of the region of equivalence, as a share: 0.02 is two points."""
    worlds: Mapping[str, World]
    tuning: Mapping[str, str]
    """Family → the world on which its methods are tuned."""
    tuned: Mapping[str, TunedMethod]
    base_weights: tuple[float, ...]
    """w of the averages of a last policy with the base model; the path goes from 1 through these to 0."""
    part_weights: tuple[float, ...] = ()
    """The same of one part of the model, where 1 is no base model and is among them if it is wanted."""
    temperatures: tuple[float, ...] = ()
    """Of the decodings, as factors of that of training, from the highest to the lowest."""
    tuned_by: str = "area"
    """The endpoint whose mean chooses settings; a run that has none counts 0."""
    stages: tuple[Stage, ...]
    questions: tuple[Question, ...]
    predictions: tuple[Prediction, ...]

    def stage(self, name: str) -> Stage:
        """The stage of a name. Raises `ConfigError` if there is none."""
        found = next((stage for stage in self.stages if stage.name == name), None)
        if found is None:
            names = ", ".join(stage.name for stage in self.stages)
            raise ConfigError(f"stage '{name}' is not in edition {self.name}: choose from {names}")
        return found

    def decodings(self, stage: Stage, method: str) -> dict[str, tuple[float, ...]]:
        """What is measured of the last policies of a method: what follows its name → temperatures, or w of the base.

        A path over w ends at 0, the last policy itself.
        """
        whole = (1.0, *self.base_weights, 0.0)
        found = {AVERAGED: whole} if stage.is_averaged or stage.is_decoded else {}
        if method in stage.averaged_by_part:
            found |= {f"{AVERAGED}_{part}": (*self.part_weights, 0.0) for part in AVERAGED_PARTS}
        if stage.is_decoded:
            found |= dict.fromkeys(("+temperature", "+first_temperature"), self.temperatures)
            found |= dict.fromkeys(("+mixture", "+first_mixture"), whole)
        return found

    def num_runs(self, stage: Stage) -> int:
        """Number of runs of a stage, those included that wait for a choice of settings."""
        per_seed = {
            world: sum(len(self.tuned[method].arms(self.worlds[world].family)) for method in stage.methods)
            if stage.tries_all
            else len(stage.methods) + len(stage.arms)
            for world in stage.seeds
        }
        return sum(per_seed[world] * len(seeds) for world, seeds in stage.seeds.items())


def editions() -> list[str]:
    """Names of the editions."""
    files = resources.files("apo_lab.editions").iterdir()
    return sorted(path.name.removesuffix(".yaml") for path in files if path.name.endswith(".yaml"))


def load_protocol(name: str) -> Protocol:
    """Read the protocol of an edition, or of a YAML file of the same form.

    Raises:
        ConfigError: there is no such edition, or a stage, question or prediction names what is not in it.
    """
    if name not in editions() and not (name.endswith(".yaml") and Path(name).is_file()):
        raise ConfigError(f"edition={name}: choose from {', '.join(editions())}, or give the path of a YAML file")
    try:
        return _checked(_protocol(name, yaml.safe_load(protocol_text(name))))
    except yaml.YAMLError as error:
        raise ConfigError(f"edition={name} is no YAML: {' '.join(str(error).split())}") from None
    except KeyError as error:
        raise ConfigError(f"edition={name} lacks the key {error}: see apo_lab/editions/hour.yaml") from None
    except TypeError as error:
        raise ConfigError(f"edition={name} has other keys than an edition: {error}; see hour.yaml") from None


def protocol_text(name: str) -> str:
    """The YAML file of an edition."""
    if name.endswith(".yaml"):
        return Path(name).read_text(encoding="utf-8")
    return (resources.files("apo_lab.editions") / f"{name}.yaml").read_text(encoding="utf-8")


def _protocol(name: str, content: dict[str, Any]) -> Protocol:
    content = _frozen(content)
    tuned = {
        method: TunedMethod(name=method, **{**keys, "rates": {**content["rates"], **keys.get("rates", {})}})
        for method, keys in content["tuned"].items()
    }
    return Protocol(
        name=name,
        margin=content["margin"],
        worlds={world: World(name=world, **keys) for world, keys in content["worlds"].items()},
        tuning=content["tuning"],
        tuned=tuned,
        base_weights=content["base_weights"],
        part_weights=content.get("part_weights", ()),
        temperatures=content.get("temperatures", ()),
        tuned_by=content.get("tuned_by", "area"),
        stages=tuple(_stage(stage, keys, tuple(tuned)) for stage, keys in content["stages"].items()),
        questions=tuple(Question(key=key, **keys) for key, keys in content["questions"].items()),
        predictions=tuple(Prediction(**row) for row in content["predictions"]),
    )


def _frozen(value: Any) -> Any:
    """A value of YAML with tuples in place of lists."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _stage(name: str, keys: Mapping[str, Any], tuned: tuple[str, ...]) -> Stage:
    own = {key: value for key, value in keys.items() if key not in ("average", "decode")}
    if own.get("methods") == "all":
        own["methods"] = tuned
    return Stage(name=name, is_averaged=keys.get("average", False), is_decoded=keys.get("decode", False), **own)


def _checked(protocol: Protocol) -> Protocol:
    """Refuse names that lead nowhere: a typing error would silently leave runs or verdicts out."""

    def refuse(place: str, name: str, known: Sequence[str]) -> None:
        if name not in known:
            raise ConfigError(f"edition {protocol.name}, {place}: '{name}' is not among {', '.join(known)}")

    refuse("tuned_by", protocol.tuned_by, ENDPOINTS)
    for stage in protocol.stages:
        for world in stage.seeds:
            refuse(f"stage {stage.name}", world, list(protocol.worlds))
        for method in stage.averaged_by_part:
            refuse(f"stage {stage.name}, averaged_by_part", method, [*stage.methods, *stage.arms])
        for method in (*stage.methods, *filter(None, (stage.like, stage.rate_of))):
            refuse(f"stage {stage.name}", method, list(protocol.tuned))
    for question in protocol.questions:
        stage = protocol.stage(question.stage)
        named = [*stage.methods, *stage.arms, *protocol.tuned]
        named += [average for name in named for average in averages_of(name, AVERAGED_PARTS)]
        if stage.is_decoded:
            named += [method_of(name) + after for name in named for after in (*DECODINGS, DECODED, ALIKE)]
        refuse(f"question {question.key}, endpoint", question.endpoint, ENDPOINTS)
        units = UNITS if len(question.worlds) > 1 else UNITS[:1]
        refuse(f"question {question.key}, unit over {len(question.worlds)} world(s)", question.unit, units)
        for world in question.worlds:
            refuse(f"question {question.key}", world, list(protocol.worlds))
        for before, after in question.pairs:
            refuse(f"question {question.key}", before, [*named, HALF])
            refuse(f"question {question.key}", after, named)
    pairs = {question.key: question.pairs for question in protocol.questions}
    for prediction in protocol.predictions:
        refuse("predictions", prediction.question, list(pairs))
        refuse("predictions", str(prediction.pair), [str(pair) for pair in pairs[prediction.question]])
    return protocol
