"""Checks that a weight sync is complete: a partly synced engine would sample from a mixture of two policies."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from apo_lightning.errors import StaleWeightsError


def parameter_shapes(model_dir: Path) -> dict[str, torch.Size]:
    """The shape of every parameter by Hugging Face name, a tied head under both names. Allocates nothing."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir))
    return {name: parameter.shape for name, parameter in model.named_parameters(remove_duplicate=False)}


def _first(names: Sequence[str]) -> str:
    """The first five names, as text."""
    return ", ".join(names[:5]) + ", …" * (len(names) > 5)


class WeightAudit:
    """Checks a stream of weights on its way to the engine.

    It raises nothing while the stream runs, which would leave the receiving model half rebuilt and the other ranks
    waiting in a collective. Bad items are withheld, an exception of the source ends the stream, and `verify` reports
    all of them afterwards.

    Args:
        expected: shape of every parameter.
    """

    def __init__(self, expected: Mapping[str, torch.Size]):
        self._expected = expected
        self._seen: set[str] = set()
        self._problems: dict[str, list[str]] = {"missing": [], "unknown": [], "given twice": [], "of another shape": []}
        self._source_error: Exception | None = None

    def watch(self, named_weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Pass the stream on, without items that must not be loaded."""
        while True:
            try:
                name, weight = next(named_weights)
            except StopIteration:
                return
            except Exception as error:
                self._source_error = error
                return
            if problem := self._problem(name, weight):
                self._problems[problem].append(name)
            else:
                self._seen.add(name)
                yield name, weight

    def verify(self) -> None:
        """Raise the source's exception, or `StaleWeightsError` if the sync was incomplete."""
        if self._source_error is not None:
            raise self._source_error
        known = self._seen.union(self._problems["of another shape"])
        self._problems["missing"] = [name for name in self._expected if name not in known]
        found = [f"{len(names)} {problem} ({_first(names)})" for problem, names in self._problems.items() if names]
        if found:
            raise StaleWeightsError(f"incomplete weight sync: {'; '.join(found)}")

    def _problem(self, name: str, weight: Tensor) -> str | None:
        if name not in self._expected:
            return "unknown"
        if name in self._seen:
            return "given twice"
        return None if weight.shape == self._expected[name] else "of another shape"
