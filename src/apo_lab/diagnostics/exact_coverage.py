"""Exact pass@k of a puzzle's held-out problems at every validation pass."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from apo_lab.puzzles import ListedAnswer, Puzzle, PuzzleSource
from apo_lab.statistics.cover import cover_curve
from apo_lab.statistics.exact import AnswerScores, exact_metrics, means_by_kind
from apo_lightning.callbacks import StepCallback
from apo_lightning.common.console import say
from apo_lightning.common.process_group import process_rank
from apo_lightning.data import PromptDataModule
from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import Microbatch, PackedSequences
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

    Prints the first and the last pass@1 and pass@64 of the run.

    Writes `exact/answers.json` (the listed answers, once), `exact/step_000010.npz` (their `logprobs` in that order,
    float32) and `exact/metrics.jsonl` (one line per evaluation point) to the run's folder. Every rank scores all
    answers, since a sharded forward needs all ranks.

    Raises:
        ConfigError: at the first evaluation point, if the tokenizer does not give one token per symbol, or if other
            tokens than the end of sequence end a completion.
    """

    def __init__(
        self, puzzle: Puzzle, ks: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256), tokens_per_microbatch: int = 2048
    ) -> None:
        self.puzzle = puzzle
        self.ks = tuple(ks)
        self.tokens_per_microbatch = tokens_per_microbatch
        self._listed: Listed | None = None

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
        if trainer.is_global_zero and trainer.global_step >= trainer.max_steps:
            say(self._closing_line(folder / METRICS, len(prompts)))

    @torch.no_grad()
    def score(
        self, policy: Policy, prompts: Sequence[Prompt], step: int, folder: Path, *, temperature: float
    ) -> dict[str, float]:
        """Score all listed answers, write the files, and return the metrics without their prefix."""
        if self._listed is None or self._listed.prompts != tuple(prompts):
            self._listed = list_answers(self.puzzle, prompts, policy, self.tokens_per_microbatch)
        listed = self._listed
        of_tokens, entropy, max_prob = listed.statistics(policy, temperature=temperature).unbind(1)
        by_token = {"entropy": entropy, "max_prob": max_prob}
        logprobs = torch.zeros_like(listed.scores.logprobs).index_add_(0, listed.owner, of_tokens)
        scores = replace(listed.scores, logprobs=logprobs)
        metrics = exact_metrics(scores, self.ks) | cover_curve(scores.success)
        metrics |= means_by_kind(listed.kinds, by_token, logprobs.exp()[listed.owner])
        if process_rank() == 0:
            self._write(folder, step, listed, logprobs, metrics)
        return metrics

    def _write(
        self, folder: Path, step: int, listed: "Listed", logprobs: Float[Tensor, "answers"], metrics: dict[str, float]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        listing = folder / "answers.json"
        if not listing.is_file():
            rows = [
                {"problem": prompt.problem, "answers": [[a.text, a.strategy, a.is_valid] for a in answers]}
                for prompt, answers in zip(listed.prompts, listed.answers, strict=True)
            ]
            listing.write_text(
                json.dumps({"puzzle": self.puzzle.name, "strategies": list(self.puzzle.strategies), "problems": rows})
            )
        np.savez_compressed(folder / f"step_{step:06d}.npz", logprobs=logprobs.float().numpy())
        _record(folder / METRICS, step, metrics)

    def _closing_line(self, path: Path, num_problems: int) -> str:
        """First and last evaluation point of the run, at the ks of the laboratory's endpoints."""
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        first, last = rows[0], rows[-1]
        shown = [f"pass@{k}" for k in self.ks if k in (1, 64)] or [f"pass@{self.ks[-1]}"]
        changes = [f"{name} {first[name]:.3f} -> {last[name]:.3f}" for name in shown]
        return f"exact, {num_problems} problems, step {first['step']} -> {last['step']}: {', '.join(changes)}"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """All answers of some prompts, packed for scoring; the same at every evaluation point."""

    prompts: tuple[Prompt, ...]
    answers: list[list[ListedAnswer]]
    """The answers of each prompt."""
    scores: AnswerScores
    """All answers, without their log-probs."""
    kinds: list[str]
    """The kind of every token."""
    owner: Int[Tensor, "tokens"]
    """The index of each token's answer."""
    microbatches: list[Microbatch]

    @torch.no_grad()
    def statistics(self, policy: Policy, *, temperature: float) -> Float[Tensor, "tokens 3"]:
        """Log-prob [nats], entropy [nats] and largest probability at every token, by one forward pass."""
        columns = torch.zeros(len(self.owner), 3, dtype=torch.float64)
        for microbatch in self.microbatches:
            found = policy(microbatch, temperature=temperature)
            parts = (found.logprobs, found.entropy, found.max_prob)
            columns[microbatch.token_index.cpu()] = torch.stack(parts, dim=1).double().cpu()
        return columns


def _record(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add the line of a step; lines from this step on, which a resumed run repeats, are replaced."""
    earlier = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    lines = [row for row in earlier if row["step"] < step] + [{"step": step, **metrics}]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))


def list_answers(puzzle: Puzzle, prompts: Sequence[Prompt], policy: Policy, tokens_per_microbatch: int) -> Listed:
    """List all answers of the prompts under the policy's tokenizer; raises `ConfigError` as `ExactCoverage`."""
    tokenizer = policy.tokenizer
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    if others := [i for i in policy.stop_token_ids if i != end]:
        # The reward accepts an answer with any of these ends, but only one is listed: p(x) would be too small.
        raise ConfigError(
            f"completions also end with {tokenizer.convert_ids_to_tokens(others)}: the exact measure lists answers "
            f"that end with '{tokenizer.eos_token}', give model.stop_tokens=[] and a model that declares no other end"
        )
    answers = [puzzle.answers(prompt.problem) for prompt in prompts]
    flat = [(i, answer) for i, of_prompt in enumerate(answers) for answer in of_prompt]
    encoded = tokenizer([answer.text for _, answer in flat], add_special_tokens=False)["input_ids"]
    kinds = [puzzle.kinds(answer.text) for _, answer in flat]
    for (_, answer), ids, own in zip(flat, encoded, kinds, strict=True):
        if len(ids) + 1 != len(own):
            raise ConfigError(
                f"the answer '{answer.text}' of {puzzle.name} has {len(ids) + 1} tokens for {len(own)} symbols under "
                "this model's tokenizer: use a model whose tokenizer splits numbers into digits"
            )
    sequences = PackedSequences(
        prompts=tuple(prompt.token_ids for prompt in prompts),
        completions=tuple((*ids, end) for ids in encoded),
        owners=tuple(i for i, _ in flat),
    )
    places = {strategy: place for place, strategy in enumerate(puzzle.strategies)}
    return Listed(
        prompts=tuple(prompts),
        answers=answers,
        scores=AnswerScores(
            problem=torch.tensor(sequences.owners),
            strategy=torch.tensor([places[answer.strategy] for _, answer in flat]),
            is_valid=torch.tensor([answer.is_valid for _, answer in flat]),
            logprobs=torch.zeros(len(flat), dtype=torch.float64),
            num_problems=len(prompts),
            num_strategies=len(places),
        ),
        kinds=[kind for own in kinds for kind in own],
        owner=torch.arange(len(flat)).repeat_interleave(torch.tensor([len(own) for own in kinds])),
        microbatches=sequences.microbatches(range(len(flat)), tokens_per_microbatch, policy.head_weight.device),
    )


def held_out_prompts(
    source: PuzzleSource, tokenizer: PreTrainedTokenizerBase, prompt_template: str | None
) -> list[Prompt]:
    """The prompts of a puzzle's held-out problems for one model."""
    data = PromptDataModule(source, tokenizer, prompts_per_step=1, seed=0, prompt_template=prompt_template)
    data.prepare()
    return data.validation_prompts[source.name]
