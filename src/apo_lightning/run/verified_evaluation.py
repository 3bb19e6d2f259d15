"""What an evaluation says of itself, made again from its samples and from the weights that it names."""

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from apo_lightning.checkpoints.folder import load_snapshot, step_name
from apo_lightning.common.checks import DiffersError, require_alike
from apo_lightning.common.files import to_json
from apo_lightning.common.identity import read_sealed, sha256_of_file
from apo_lightning.contracts import TrainerState
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.card import card
from apo_lightning.evaluation.loading import read_result
from apo_lightning.evaluation.results import summarise
from apo_lightning.evaluation.sampler import plan_samples
from apo_lightning.evaluation.samples_file import IDENTITY, SAMPLES, VERSION, read_samples
from apo_lightning.evaluation.scoring import require_likely
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.model.policy import Policy
from apo_lightning.run.choices import composed, options_of
from apo_lightning.run.evaluated_policy import EvaluatedPolicy, find_evaluated_policy
from apo_lightning.run.evaluating import Task, prepare_tasks
from apo_lightning.run.own_problems import with_own_problems
from apo_lightning.run.trained import BASE, FINAL
from apo_lightning.run.verified_run import Subject, ids_of, name_of, of_folder, require_same_verdicts

OF_SETTINGS = ("seed", "temperature", "top_p", "samples_per_batch", "num_samples", "support_anchor_size",
               "max_completion_tokens")  # fmt: skip
COMPUTED = ("float32", "bfloat16")


class Evaluation:
    """The folder of an evaluation, and what several checks read of it."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject, self.folder = subject, folder
        with of_folder():
            self.result, self.samples = read_result(folder / "results.json"), read_samples(folder / SAMPLES)
            self.record = read_sealed(folder / IDENTITY, VERSION)

    @cached_property
    def again(self) -> tuple[EvaluatedPolicy, Task]:
        """Policy and benchmark on this machine; of several with its name, the one with its problems and reward."""
        found: list[tuple[EvaluatedPolicy, Task]] = []
        said = self.result.data.sha256, self.result.settings.reward
        for cfg in self._candidates():
            with contextlib.suppress(*[ConfigError] * len(found)):  # the next may need what is not on this machine
                evaluated = find_evaluated_policy(cfg, [])
                own = prepare_tasks(cfg, evaluated, self.result.settings.engine)
                found += [(evaluated, task) for task in own if task.benchmark.name == self.result.benchmark]
            if found and (found[-1][1].data.sha256, found[-1][1].settings.reward) == said:
                return found[-1]
        if not found:
            raise ConfigError(
                f"there is no benchmark={self.result.benchmark} here: give data.path= the file of its problems"
            )
        return next((pair for pair in found if pair[1].data.sha256 == said[0]), found[0])

    def _candidates(self) -> Iterator[DictConfig]:
        """Configurations that may have made it: a file of the reader's, the run's own problems, a benchmark."""
        name, own = self.result.benchmark, self.subject.cfg
        of_benchmark = [[f"benchmark=[{name}]"]] if name in options_of("benchmark") else []
        for overrides in ([], *of_benchmark):
            cfg = composed("evaluate", overrides)
            cfg.run, cfg.trainer, cfg.output_dir = own.run, own.trainer, str(self.subject.scratch / "evaluation")
            cfg.data.path = (
                None if overrides or own.data.path is None or Path(own.data.path).stem != name else own.data.path
            )
            step = self.result.model.step
            cfg.checkpoint = FINAL if step is None else step_name(step) if step else BASE
            for key in OF_SETTINGS:
                cfg[key] = getattr(self.result.settings, key)
            cfg.limit, cfg.token_statistics = self.result.data.num_problems, self.record["token_statistics"]
            with contextlib.suppress(*[ConfigError] * len(of_benchmark)):  # the run may have held nothing out
                yield with_own_problems(cfg, overrides)

    @cached_property
    def policy(self) -> tuple[Policy, str]:
        """The policy at the stage that was measured, computing as it did, and the SHA-256 of its weights."""
        if (dtype := self.result.model.dtype) not in COMPUTED:
            raise DiffersError(f"results.json: model.dtype is {dtype!r:.60}")
        evaluated = replace(self.again[0], compute_dtype=getattr(torch, dtype))
        [stage] = evaluated.stages
        if stage.step is None:
            return evaluated.load(evaluated.device)
        policy, tensors = evaluated.load_stages(evaluated.device)
        if stage.snapshot is not None:
            load_snapshot(tensors, stage.snapshot)
        return policy, weights_sha256(policy)


def sampling(evaluation: Evaluation) -> str:
    """Problems, prompt, judge's code, model and seeds on this machine, against `evaluation.json` and `results.json`."""
    _, task = evaluation.again
    here = _plain({key: value for key, value in task.identity.items() if key != "versions"})
    contents = {key: here.pop(key) for key in [*here] if key.startswith("the ")}
    there = {key: value for key, value in evaluation.record.items() if key.startswith("the ")}
    num_values = len(contents) + require_alike({key: evaluation.record.get(key) for key in here}, here)
    evaluation.subject.require_same_identity(there, contents, "the evaluation")
    own = {key: _plain(asdict(evaluation.result))[key] for key in ("benchmark", "settings", "versions")}
    num_values += require_alike(own, {key: evaluation.record.get(key) for key in own}, "results.json: ")
    settings = evaluation.result.settings
    plan = plan_samples(task.prompts, settings.num_samples, settings.seed, task.benchmark.name)
    planned = [(each.prompt.id, each.sample, each.seed) for each in plan]
    drawn = [(each.prompt_id, each.sample, each.seed) for each in evaluation.samples]
    return f"{num_values + require_alike({SAMPLES: drawn}, {SAMPLES: planned})} values"


def verdicts(evaluation: Evaluation) -> str:
    """Every verdict, judged again."""
    (evaluated, task), lines = evaluation.again, [asdict(sample) for sample in evaluation.samples]
    prompts = [prompt for prompt in task.prompts for _ in range(evaluation.result.settings.num_samples)]
    with contextlib.closing(task.benchmark.reward) as reward:
        num_judged = require_same_verdicts(reward, evaluated.tokenizer, prompts, lines, "text", TrainerState())
    return f"{num_judged} of {len(lines)} verdicts"


def results(evaluation: Evaluation) -> str:
    """Every number of `results.json`, from the samples; `card.md`."""
    said, path = evaluation.result, evaluation.folder / "results.json"
    found = summarise(
        evaluation.samples,
        **{key: getattr(said, key) for key in ("benchmark", "model", "data", "settings", "versions")},
        measure_diversity="diversity" in said.metrics,
        encoder=evaluation.again[1].encoder if said.settings.encoder else None,
    )
    here = _plain(asdict(replace(found, samples_sha256=sha256_of_file(evaluation.folder / SAMPLES))))
    there = json.loads(path.read_bytes())
    num_values = require_alike({key: there.get(key) for key in here}, here, tolerance=1e-6)
    require_alike({"card.md": path.with_name("card.md").read_text(encoding="utf-8")}, {"card.md": card(said)})
    return f"{num_values} numbers"


def policy(evaluation: Evaluation) -> str:
    """The hash of the weights; and log π of some samples, chosen at random, under these weights."""
    found, sha256 = evaluation.policy
    said = {"results.json": evaluation.result.model.weights_sha256, IDENTITY: evaluation.record["weights_sha256"]}
    require_alike(said, dict.fromkeys(said, sha256), "weights_sha256 of ")
    settings, samples = evaluation.result.settings, evaluation.samples
    number = min(evaluation.subject.cfg.completions, len(samples))
    if not number or not settings.temperature or settings.top_p < 1:
        raise ConfigError("log-probs: not asked (completions=0), or not of the whole distribution (temperature, top_p)")
    # By the system's generator: no author can know which.
    lines = [asdict(sample) for sample in random.SystemRandom().sample(samples, number)]
    ids = [ids_of(found.tokenizer, line, "text") for line in lines]
    # A tokenizer may divide a text otherwise than it was sampled.
    known = [(line, own) for line, own in zip(lines, ids, strict=True) if len(own) == line["num_tokens"]]
    if not known:
        raise ConfigError(f"log-probs: the tokenizer divides the {number} samples otherwise than they were sampled")
    prompts = {prompt.id: prompt for prompt in evaluation.again[1].prompts}
    gap = require_likely(
        found,
        [prompts[line["prompt_id"]] for line, _ in known],
        [own for _, own in known],
        [line["logprob"] for line, _ in known],
        temperature=settings.temperature,
        names=[name_of(line) for line, _ in known],
    )
    return f"sha256 {sha256[:16]}; log-probs of {len(known)} samples within {gap:.1g} nats a token"


def _plain(record: Any) -> Any:
    """A record as its file has it."""
    return json.loads(to_json(record))
