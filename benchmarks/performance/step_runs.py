"""One training run in this process, for `step.py`: ours or TRL's, each step timed from outside of the trainer.

    python -m benchmarks.performance.step_runs (ours | trl) --folder FOLDER --steps N --new-tokens N [--overrides …]

TRL takes model, data, sizes and learning rate from the same configuration. Leaves `run.json` in the folder.
"""

import argparse
import csv
import json
import pickle
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torch import Tensor

from apo_lightning.model.policy import Policy
from apo_lightning.rollout.engine import EngineContext, FinishedListener, RolloutEngine
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.run.training import prepare, train
from apo_lightning.types import Completion, GenerationRequest
from benchmarks import CONFIGS
from benchmarks.shared.timing import pin_threads

TOKENS_PER_MICROBATCH = 2048


class OutsideClock(pl.Callback):
    """Seconds from the end of one step to the end of the next, whatever the trainer does in between."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.ends: list[float] = []

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.path.write_text(json.dumps(self.ends))


def recorded_key(request: GenerationRequest) -> tuple[tuple[int, ...], int]:
    """What a sample is; the seed alone already tells step, prompt and place in the group."""
    return request.prompt_token_ids, request.seed


class RecordingEngine(TransformersEngine):
    """Keeps everything that it samples, for `ReplayEngine`."""

    def __init__(self, sequences_per_batch: int, recording: str) -> None:
        super().__init__(sequences_per_batch=sequences_per_batch)
        self.path = Path(recording)
        self.recorded: dict[tuple[tuple[int, ...], int], Completion] = {}

    def generate(self, requests: Sequence[GenerationRequest], *others: Any, **named: Any) -> list[Completion]:
        completions = super().generate(requests, *others, **named)
        self.recorded |= {recorded_key(request): found for request, found in zip(requests, completions, strict=True)}
        return completions

    def _stop(self) -> None:
        self.path.write_bytes(pickle.dumps(self.recorded))
        super()._stop()


class ReplayEngine(RolloutEngine):
    """Answers with recorded completions: two algorithms see the same rollouts, at no cost."""

    name = "replay"

    def __init__(self, recording: str) -> None:
        super().__init__()
        self.recorded = pickle.loads(Path(recording).read_bytes())

    def check(self, device: torch.device) -> None: ...

    def _start(self, context: EngineContext) -> None: ...

    def _load(self, named_weights: Iterator[tuple[str, Tensor]]) -> None:
        for _ in named_weights:
            pass

    def _sample(self, requests: Sequence[GenerationRequest], finished: FinishedListener) -> None:
        for index, request in enumerate(requests):
            finished(index, replace(self.recorded[recorded_key(request)], policy_version=self._version))

    def _release_memory(self) -> None: ...

    def _claim_memory(self) -> None: ...

    def _stop(self) -> None: ...


def configuration(given: argparse.Namespace) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(
            "train",
            overrides=[
                "callbacks=none",
                "checkpoint.save_every=null",
                "data.num_validation=1",
                f"data.max_completion_tokens={given.new_tokens}",
                f"trainer.max_steps={given.steps}",
                f"trainer.val_check_interval={given.steps + 1}",
                f"tokens_per_microbatch={TOKENS_PER_MICROBATCH}",
                "+callbacks.outside._target_=benchmarks.performance.step_runs.OutsideClock",
                f"+callbacks.outside.path={given.folder / 'ends.json'}",
                *given.overrides,
            ],
        )


def run_ours(given: argparse.Namespace) -> dict[str, Any]:
    cfg = configuration(given)
    if given.force_length:
        Policy.stop_token_ids = property(lambda _: ())  # pyright: ignore[reportAttributeAccessIssue]
    train(cfg, given.folder)
    with (given.folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train/reward"]]
    names = [name for name in rows[0] if name.startswith("time/")]
    return {
        "seconds": differences(json.loads((given.folder / "ends.json").read_text())),
        "phases": [{name: float(row[name] or 0) for name in names} for row in rows[1:]],
        "completion_tokens": [float(row["train/completion_tokens"]) for row in rows[1:]],
    }


def run_trl(given: argparse.Namespace) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    cfg = configuration(given)
    parts = prepare(cfg)
    steps = iter(parts.data.train_dataloader())
    prompts = [prompt for _ in range(given.steps) for prompt in next(steps)]
    longest = max(len(prompt.token_ids) for prompt in prompts) + given.new_tokens
    num_completions = cfg.prompts_per_step * cfg.group_size
    rows_at_once = 1
    while rows_at_once < num_completions and 2 * rows_at_once * longest <= TOKENS_PER_MICROBATCH:
        rows_at_once *= 2

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
        return [verdict.reward for verdict in parts.reward.score(completions, answer)]

    class Ends(TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    ends = Ends()
    trainer = GRPOTrainer(
        model=parts.model.load_model(cfg.seed),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(given.folder),
            use_cpu=True,
            bf16=parts.compute_dtype == torch.bfloat16,
            gradient_checkpointing=False,
            per_device_train_batch_size=rows_at_once,
            gradient_accumulation_steps=num_completions // rows_at_once,
            num_generations=cfg.group_size,
            max_completion_length=given.new_tokens,
            generation_kwargs={"min_new_tokens": given.new_tokens} if given.force_length else None,
            temperature=cfg.temperature,
            beta=0.0,
            learning_rate=cfg.optimizer.lr,
            max_steps=given.steps,
            shuffle_dataset=False,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt.text, "answer": prompt.answer} for prompt in prompts]),
        processing_class=parts.tokenizer,
        callbacks=[ends],
    )
    trainer.train()
    parts.reward.close()
    logged = [entry for entry in trainer.state.log_history if "completions/mean_length" in entry]
    return {
        "seconds": differences(ends.ends),
        "phases": [],
        "completion_tokens": [entry["completions/mean_length"] for entry in logged[1:]],
    }


def differences(ends: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("who", choices=["ours", "trl"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True, help="the most a completion may have")
    parser.add_argument("--force-length", action="store_true", help="every completion has exactly so many")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--overrides", nargs="*", default=[], help="as those of train.py")
    given = parser.parse_args()
    pin_threads(given.threads)
    given.folder.mkdir(parents=True, exist_ok=True)
    found = run_ours(given) if given.who == "ours" else run_trl(given)
    found["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (given.folder / "run.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
