"""Exact pass@k of a puzzle's held-out problems at every validation pass."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.diagnostics.answer_tree import AnswerTree
from apo_lab.diagnostics.listed_answers import list_answers
from apo_lab.puzzles import Puzzle
from apo_lab.statistics.exact import cover_curve, exact_metrics, means_by_kind
from apo_lightning.callbacks import StepCallback
from apo_lightning.common.console import say
from apo_lightning.common.files import write_atomically
from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.model.policy import Policy
from apo_lightning.step.settings import StepSettings
from apo_lightning.types import Prompt, ValidationOutput

METRICS = "metrics.jsonl"
"""File with a line of metrics an evaluation point."""


class ExactCoverage(StepCallback):
    """Scores every listed answer of every held-out problem teacher-forced, so that p(x) and pass@k are exact.

    p(x) is the expectation of the puzzle's reward. An answer includes its end of sequence: a completion that is cut off
    has more tokens than any valid answer, each at least one character (see `Puzzle`), so it is never right.

    Logs the values of `exact_metrics` and `cover_curve` as `exact/…` and, for each kind of token,
    `exact/entropy/<kind>` and `exact/max_prob/<kind>`. Tokens are weighted by the policy's probability of their answer.

    All held-out problems are scored, also where `trainer.limit_val_batches` limits those that are sampled.

    Prints the first and the last pass@1 and pass@64 of the run, which ends at the first evaluation point where the
    exact pass@1 is `stop_at` or more, as after its last step; None: after `trainer.max_steps`.

    Writes to the run's folder: `exact/answers.json` (the listed answers and their entrances, once),
    `exact/step_000010.npz` (in that order, float32: `logprobs` of answers, `mass` and `skill` of `Entrances`) and
    `exact/metrics.jsonl` (one line per evaluation point). Every rank scores all answers, since a sharded forward needs
    all ranks.

    Raises:
        ConfigError: at the first evaluation point, if the tokenizer does not give one token per symbol, or if other
            tokens than the end of sequence end a completion.
    """

    def __init__(
        self,
        puzzle: Puzzle,
        ks: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
        tokens_per_microbatch: int = 2048,
        stop_at: float | None = None,
    ) -> None:
        self.puzzle = puzzle
        self.stop_at = stop_at
        self.ks = tuple(ks)
        self.tokens_per_microbatch = tokens_per_microbatch
        self._tree: AnswerTree | None = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Score the policy that has just been validated."""
        outputs: list[ValidationOutput] = getattr(pl_module, "validation_outputs", [])
        output = next((output for output in outputs if output.name == self.puzzle.name), None)
        if trainer.sanity_checking or output is None:
            return
        policy, settings = pl_module.policy, pl_module.settings
        assert isinstance(policy, Policy)
        assert isinstance(settings, StepSettings)
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        prompts = data.validation_prompts[self.puzzle.name]
        folder = Path(trainer.default_root_dir) / "exact"
        was_training = policy.training
        policy.eval()
        with unsharded_root(policy):
            metrics = self.score(policy, prompts, output.step, folder, temperature=settings.temperature)
        policy.train(was_training)
        logged = {f"val/{self.puzzle.name}/exact/{name}": value for name, value in metrics.items()}
        for logger in trainer.loggers:
            logger.log_metrics({**logged, "step": float(output.step)}, step=output.step)
        if self.stop_at is not None and metrics["pass@1"] >= self.stop_at:
            trainer.should_stop = True
        if trainer.is_global_zero and (trainer.should_stop or trainer.global_step >= trainer.max_steps):
            say(self._closing_line(folder / METRICS, len(prompts)))

    @torch.no_grad()
    def score(
        self, policy: Policy, prompts: Sequence[Prompt], step: int, folder: Path, *, temperature: float
    ) -> dict[str, float]:
        """Score all listed answers, write the files, and return the metrics without their prefix."""
        listed = self.tree(policy, prompts).listed
        of_tokens, entropy, max_prob = listed.statistics(policy, temperature=temperature).unbind(1)
        return self.score_tokens(of_tokens, step, folder, {"entropy": entropy, "max_prob": max_prob})

    def tree(self, policy: Policy, prompts: Sequence[Prompt]) -> AnswerTree:
        """The listed answers of the prompts under the policy's tokenizer, which are kept."""
        if self._tree is None or self._tree.listed.prompts != tuple(prompts):
            listed = list_answers(self.puzzle, prompts, policy, self.tokens_per_microbatch)
            self._tree = AnswerTree.of(self.puzzle, listed)
        return self._tree

    def score_tokens(
        self,
        of_tokens: Float[Tensor, "tokens"],
        step: int,
        folder: Path,
        by_token: Mapping[str, Tensor] | None = None,
    ) -> dict[str, float]:
        """As `score`, from the log-probs [nats] of the tokens of `tree`, and other statistics of them by name."""
        assert self._tree is not None
        tree, listed = self._tree, self._tree.listed
        logprobs = torch.zeros_like(listed.scores.logprobs).index_add_(0, listed.owner, of_tokens)
        scores = replace(listed.scores, logprobs=logprobs)
        metrics = exact_metrics(scores, self.ks) | cover_curve(scores.success)
        metrics |= means_by_kind(listed.kinds, by_token or {}, logprobs.exp()[listed.owner])
        if process_rank() == 0:
            entrances = tree.under(of_tokens)
            arrays = {"logprobs": logprobs, "mass": entrances.mass, "skill": entrances.skill}
            self._write(folder, step, tree, arrays, metrics)
        return metrics

    def _write(
        self, folder: Path, step: int, tree: AnswerTree, arrays: Mapping[str, Tensor], metrics: dict[str, float]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        listing, listed = folder / "answers.json", tree.listed
        if not listing.is_file():
            rows = [
                {"problem": prompt.problem, "answers": [[a.text, a.strategy, a.is_valid] for a in answers]}
                for prompt, answers in zip(listed.prompts, listed.answers, strict=True)
            ]
            content = {"puzzle": self.puzzle.name, "strategies": list(self.puzzle.strategies), "problems": rows}
            content["entrances"] = [*zip(tree.problem.tolist(), tree.entrances, strict=True)]
            write_atomically(listing, json.dumps(content).encode())
        in_float32 = {name: values.float().numpy() for name, values in arrays.items()}
        np.savez_compressed(folder / f"step_{step:06d}.npz", allow_pickle=False, **in_float32)
        _record(folder / METRICS, step, metrics)

    def _closing_line(self, path: Path, num_problems: int) -> str:
        """First and last evaluation point of the run, at the ks of the laboratory's endpoints."""
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        first, last = rows[0], rows[-1]
        shown = [f"pass@{k}" for k in self.ks if k in (1, 64)] or [f"pass@{self.ks[-1]}"]
        changes = [f"{name} {first[name]:.3f} -> {last[name]:.3f}" for name in shown]
        return f"exact, {num_problems} problems, step {first['step']} -> {last['step']}: {', '.join(changes)}"


def _record(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add the line of a step; lines from this step on, which a resumed run repeats, are replaced."""
    earlier = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    lines = [row for row in earlier if row["step"] < step] + [{"step": step, **metrics}]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in lines).encode(), flushes=False)
