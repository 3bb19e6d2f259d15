"""Checks that a weight sync is complete: a partly synced engine would sample from a mixture of two policies."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from apo_lightning.errors import StaleWeightsError


def parameter_shapes(model_dir: Path) -> dict[str, torch.Size]:
    """Shapes of all that a checkpoint holds, by Hugging Face name, a tied head under both names; allocates nothing."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir))
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


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
        try:
            for name, weight in named_weights:
                if name not in self._expected:
                    self._problems["unknown"].append(name)
                elif name in self._seen:
                    self._problems["given twice"].append(name)
                else:
                    self._seen.add(name)
                    if weight.shape == self._expected[name]:
                        yield name, weight
                    else:
                        self._problems["of another shape"].append(name)
        except Exception as error:
            self._source_error = error

    def verify(self) -> None:
        """Raise the source's exception, or `StaleWeightsError` if the sync was incomplete."""
        if self._source_error is not None:
            raise self._source_error
        self._problems["missing"] = [name for name in self._expected if name not in self._seen]
        found = [
            f"{len(names)} {problem} ({', '.join(names[:5])}{', …' * (len(names) > 5)})"
            for problem, names in self._problems.items()
            if names
        ]
        if found:
            raise StaleWeightsError(f"incomplete weight sync: {'; '.join(found)}")
