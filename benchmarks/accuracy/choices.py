"""Which strategy do the last policies of an edition on locks choose in each class? Prints a table; a minute.

    apo lab run edition=longer bases=docs/lab/bases
    python -m benchmarks.accuracy.choices outputs/lab/longer

A word a run, a letter a class (p to w): the strategy with the highest mean probability on 256 held-out problems. Best
is the strategy that opens most held-out problems, of all and of each class.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from apo_lab.puzzles.locks import CLASSES, STRATEGIES, Locks
from benchmarks.accuracy.intervals import show

NUM_PROBLEMS = 256


def choice(run: Path) -> str:
    """The best strategy of the run's world, the best in each class, and what its last policy chooses."""
    data = OmegaConf.load(run / ".hydra" / "config.yaml").data
    locks = Locks(secret=data.puzzle.secret)
    problems = locks.problems(data.num_validation, data.seed, held_out=True)
    opened = torch.tensor([[locks.opens(each, i) for i in range(len(STRATEGIES))] for each in problems]).double()
    shown = problems[:NUM_PROBLEMS]
    weights = run / "checkpoints" / "final"
    tokenizer, model = AutoTokenizer.from_pretrained(weights), AutoModelForCausalLM.from_pretrained(weights)
    prompts = torch.tensor([tokenizer(each, add_special_tokens=False).input_ids for each in shown])
    with torch.no_grad():
        chosen = model(prompts).logits[:, -1].softmax(-1)[:, tokenizer.convert_tokens_to_ids(list(STRATEGIES))]
    return f"{STRATEGIES[int(opened.mean(0).argmax())]} {by_class(opened, problems)} {by_class(chosen, shown)}"


def by_class(values: torch.Tensor, problems: list[str]) -> str:
    means = [values[[each.startswith(name) for each in problems]].mean(0) for name in CLASSES]
    return "".join(STRATEGIES[int(each.argmax())] for each in means)


def rows(folder: Path) -> Iterator[list[str]]:
    runs = sorted(path.parents[2] for path in folder.glob("*/*/*/seed_*/checkpoints/final/config.json"))
    for (world, method), found in itertools.groupby(runs, key=lambda run: (run.parts[-4], run.parts[-3])):
        best, of_classes, choices = zip(*(choice(run).split() for run in found), strict=True)
        yield [world, method, best[0], of_classes[0], " ".join(choices)]


if __name__ == "__main__":
    show(["world", "method", "best strategy", "best by class", "choice by class, run by run"], rows(Path(sys.argv[1])))
