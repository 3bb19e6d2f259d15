"""The printed names of methods, models, benchmarks and settings, and their order; others follow under their own."""

import csv
import re
from collections.abc import Iterable, Mapping
from importlib import resources


def data_rows(path: str) -> list[dict[str, str]]:
    """The rows of a CSV file of this package."""
    text = (resources.files("apo_report") / path).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


class Names(dict[str, str]):
    """Key → printed name, in the paper's order; what has none is printed as it is."""

    def __missing__(self, key: str) -> str:
        return key


BASE = "Base"
"""The method name of a model as it was downloaded."""

METHOD_ROWS = data_rows("methods.csv")
"""Each method's `algo=` stem, printed name and looks, in the order of the paper's main table: APO stands last."""
METHODS = Names((row["algo"], row["name"]) for row in METHOD_ROWS)
"""Stem of `algo=`, or method of an edition → printed name."""


def _names_of(kind: str) -> Names:
    return Names((row["key"], row["name"]) for row in data_rows("names.csv") if row["kind"] == kind)


MODELS, BENCHMARKS = _names_of("model"), _names_of("benchmark")
"""Stem of `model=` or `benchmark=` → printed name, in the paper's order."""
AXES, HYPERPARAMETERS = _names_of("axis"), _names_of("hyperparameter")
"""Config key → the symbol of a setting in a sweep; its title in the paper's table of hyper-parameters."""


def algo_of(method: str) -> str:
    """The `algo=` stem of a printed method name: `GRPO-KL` → `grpo_kl`."""
    return next((algo for algo, name in METHODS.items() if name == method), method)


def axis_name(key: str) -> str:
    """The printed name of a setting: the paper's symbol, else the last part of its key."""
    return AXES.get(key, key.rpartition(".")[2])


def variant_name(method: str, settings: Mapping[str, str], which: str = "") -> str:
    """The method, the settings in which a run departs from its defaults, and which weights: `APO (β = 0.02)`."""
    parts = [*(f"{axis_name(key)} = {value}" for key, value in settings.items()), *([which] if which else [])]
    return f"{method} ({', '.join(parts)})" if parts else method


def slug(name: str) -> str:
    """A printed name as part of a file name: `GRPO-KL (error-only)` → `grpo_kl_error_only`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def in_order(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Each name once: in the order of the known ones, which is the paper's, then others by name."""
    places = {name: place for place, name in enumerate(known)}
    return sorted(set(names), key=lambda name: (places.get(name, len(places)), name))
