"""The sections of `python -m benchmarks.gpu` in the order of their value, and which of them are asked for."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from benchmarks.gpu.rows import Row, not_run

MACHINE = "machine"
PARTS = {
    MACHINE: "machine",
    "run": "real run",
    "a": "a training",
    "b": "b kernels",
    "c": "c update",
    "d": "d engine",
    "rates": "rates",
}
REASONS = {"cuda": "no GPU", "vllm": "vLLM is not installed"}


@dataclass(frozen=True)
class Section:
    """What one process does: `SECTIONS[name]` of a module of `benchmarks`, a function from a device to rows."""

    part: str
    module: str
    name: str
    seconds: int
    """The most that it may take."""
    needs: frozenset[str] = frozenset()
    """"cuda" or "cpu", what there is on one kind of device alone; "vllm"."""
    alone: bool = False
    """Its results are durations or memory: nothing else runs on the GPU meanwhile."""

    @property
    def label(self) -> str:
        """A name for its files.

        Example:
            >>> Section("d", "gpu.engine", "eager, 256", 60).label
            'd_eager_256'
        """
        return "_".join([self.part, *self.name.replace(",", " ").split()])


def _update(name: str) -> Section:
    return Section("c", "gpu.update", name, 120, alone=True)


GPU, VLLM = frozenset({"cuda"}), frozenset({"vllm"})
FIRST = (
    Section("run", "gpu.real_run", "real run", 150),
    Section("b", "gpu.kernels", "attention", 200),
    Section("b", "gpu.kernels", "head tiles", 150),
    _update("llama3b, compiled"),
    Section("c", "gpu.head", "head", 60, alone=True),
    _update("llama3b, recomputing"),
    Section("rates", "gpu.rates", "rates", 60, alone=True),
    _update("qwen7b, compiled"),
)
"""Six minutes: does a step train, are the gradients right, how fast is the update."""
SECOND = (
    Section("c", "gpu.peers", "peers", 150, alone=True),
    Section("a", "gpu.training", "tiny", 300),
    Section("b", "gpu.kernels", "graphs", 150),
    Section("b", "gpu.layers", "layers", 200),
    _update("llama3b, keeping all"),
)
"""Four minutes more: peers on the same card, checkpoints, resume, adapters, shards."""
REST = (
    Section("a", "gpu.training", "smollm2", 400, GPU),
    _update("qwen7b, recomputing"),
    _update("qwen7b, keeping all"),
    *(
        Section("d", "gpu.engine", f"{how}, {n}", 240, GPU | VLLM, alone=True)
        for how in ("eager", "graphs")
        for n in (256, 512)
    ),
    Section("d", "gpu.engine", "small", 240, VLLM | {"cpu"}),
    Section("d", "gpu.engine", "a second engine", 240, VLLM, alone=True),
)
SECTIONS = (*FIRST, *SECOND, *REST)


def chosen(words: Sequence[str]) -> list[Section]:
    """The sections that the words name, in their order; all, in that of their value, where there is no word.

    A word is `first` or `second`, a part, or a section.

    Example:
        >>> [section.name for section in chosen(["head", "d"])][:3]
        ['head', 'eager, 256', 'eager, 512']

    Raises:
        argparse.ArgumentTypeError: no section has this name.
    """
    found: dict[Section, None] = {}
    for word in words:
        calls = {"first": FIRST, "second": SECOND}
        sections = calls.get(word) or [section for section in SECTIONS if word in (section.part, section.name)]
        if not sections:
            names = [*calls, *list(PARTS)[1:], *(section.name for section in SECTIONS)]
            known = ", ".join(repr(name) for name in dict.fromkeys(names))
            raise argparse.ArgumentTypeError(f"no section '{word}': choose among {known}")
        found |= dict.fromkeys(sections)
    return list(found) if words else list(SECTIONS)


def divide(asked: Sequence[Section], there: frozenset[str]) -> tuple[list[Section], list[Row]]:
    """The sections that can run with what is there, and a row for each of the others that a GPU would run."""
    rows = []
    for section in asked:
        missing = section.needs - there
        if missing and "cpu" not in missing:
            reason = " and ".join(REASONS[need] for need in sorted(missing))
            rows.append(replace(not_run(section.name, reason), part=PARTS[section.part]))
    return [section for section in asked if section.needs <= there], rows


def together(sections: Sequence[Section], device: str) -> Iterator[list[Section]]:
    """Groups of sections, one after the other; the sections of a group run side by side. On a CPU all are one group."""
    if device == "cpu":
        yield list(sections)
        return
    for is_alone, group in groupby(sections, key=lambda section: section.alone):
        lot = list(group)
        yield from ([section] for section in lot) if is_alone else [lot]
