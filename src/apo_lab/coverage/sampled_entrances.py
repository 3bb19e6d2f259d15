"""Where a trained policy lost right answers, estimated from samples: for tasks whose right answers cannot be listed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.coverage.entrance_records import SampledEntranceResult
from apo_lab.coverage.entrances import by_decision
from apo_lab.statistics.entrances import Entrances
from apo_lab.statistics.sampled_entrances import sampled_change
from apo_lightning.common.console import saying
from apo_lightning.common.ranges import Checked, Within
from apo_lightning.contracts import check_error_rate
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import ModelCard
from apo_lightning.evaluation.results import estimate_of
from apo_lightning.evaluation.scoring import check_engine, microbatches, pack, sequence_of_each_token
from apo_lightning.metrics.functional import pass_at_k_curve
from apo_lightning.metrics.intervals import paired_interval
from apo_lightning.model.policy import Policy
from apo_lightning.rollout.collector import Collector, sample_seed
from apo_lightning.rollout.weight_sync import check_policy_version, publish
from apo_lightning.types import GenerationRequest, Prompt

Beginning = tuple[int, ...]
NAMES = ("base", "policy")


@dataclass(frozen=True, kw_only=True)
class SampledEntranceCoverage(Checked):
    """Compare a policy with its base model. Its fields are the keys of `configs/coverage/sampled_entrances.yaml`.

    An *entrance* is the first `entrance_tokens` tokens of a right completion, among `num_samples` of each model. Its
    probability p(e) is exact; its skill q(e) is the share of right ones among `num_forced` samples behind it, of each
    model. Entrances without a right sample are missed, and Σ p(e)·q(e) is then below pass@1. The record has the pass@1
    of the free samples too, so that the two can be compared.

    Source: "Locked at the Entrance", arXiv 2608.29188, for forced prefixes. Departures: masses are exact, and the loss
    is divided between entrance and skill (`change_of_pass_at_k`, `sampled_change`).

    Attributes:
        name: of the preset.
        k: samples of a problem, of pass@k; at most `num_samples`.
        entrance_tokens: length of an entrance [tokens]; a shorter completion is an entrance as a whole.
        num_samples: free samples of a problem, from each model.
        num_forced: samples behind each entrance, from each model.
        limit: of problems, the first ones; None: all.
        tokens_per_microbatch: affects memory and speed only.

    Raises:
        ConfigError: a value is out of range.
    """

    section: ClassVar[str] = "coverage."

    name: str
    k: Annotated[int, Within("[1, inf)")] = 16
    entrance_tokens: Annotated[int, Within("[1, inf)")] = 1
    num_samples: Annotated[int, Within("[1, inf)")] = 64
    num_forced: Annotated[int, Within("[1, inf)")] = 64
    limit: Annotated[int | None, Within("[1, inf)")] = 64
    tokens_per_microbatch: Annotated[int, Within("[1, inf)")] = 2048

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k > self.num_samples:
            raise ConfigError(f"coverage.k is {self.k} and coverage.num_samples {self.num_samples}: draw k or more")

    @torch.no_grad()
    def measure(
        self,
        models: Mapping[str, Policy],
        prompts: Sequence[Prompt],
        draw: "ForcedSampler",
        model: ModelCard,
    ) -> tuple[SampledEntranceResult, pd.DataFrame]:
        """Sample both `models`, "base" and "policy", freely and behind each entrance.

        `model` is the policy's identity. Returns the record, and a row for each entrance of each problem; raises
        `ConfigError` where neither model is ever right.
        """
        free = [(prompt, ()) for prompt in prompts]
        found = {name: draw(models[name], free, self.num_samples) for name in NAMES}
        entrances = self._entrances(prompts, found)
        if not entrances:
            raise ConfigError(
                f"none of {len(prompts)}·{self.num_samples} samples of either model is right: there is no entrance"
            )
        begun = [(prompts[i], beginning) for i, beginning in entrances]
        forced = {name: draw(models[name], begun, self.num_forced) for name in reversed(NAMES)}
        under = {
            name: Entrances(
                problem=torch.tensor([i for i, _ in entrances]),
                mass=self._masses(models[name], begun, draw.temperature),
                skill=forced[name].is_right.double().mean(1),
                num_problems=len(prompts),
            )
            for name in NAMES
        }
        change, parts = sampled_change(under["base"], under["policy"], self.k, self.num_forced)
        num = torch.full((len(prompts),), self.num_samples)
        curves = {name: pass_at_k_curve(num, one.is_right.sum(1), [1, self.k]) for name, one in found.items()}
        texts = [draw.collector.text(beginning) for _, beginning in entrances]
        columns = {"problem": [prompt.id for prompt, _ in begun], "entrance": texts}
        for name, of in under.items():
            columns |= {f"{name}_{key}": values.tolist() for key, values in of.values(self.k).items()}
        frame = pd.DataFrame(columns | {name: part.tolist() for name, part in parts.items()})
        result = SampledEntranceResult(
            k=self.k,
            entrance_tokens=self.entrance_tokens,
            num_samples=self.num_samples,
            num_forced=self.num_forced,
            temperature=draw.temperature,
            model=model,
            num_problems=len(prompts),
            num_with_entrance=len({i for i, _ in entrances}),
            metrics={
                name: under[name].metrics(self.k)
                | {"sampled pass@1": curves[name][:, 0].mean().item()}
                | {f"sampled pass@{self.k}": curves[name][:, 1].mean().item()}
                for name in NAMES
            },
            difference=estimate_of(paired_interval(curves["base"][:, 1], curves["policy"][:, 1])),
            change={name: estimate_of(interval) for name, interval in change.items()},
            decisions=by_decision(frame, texts, parts, len(prompts)),
        )
        return result, frame

    def _entrances(self, prompts: Sequence[Prompt], found: Mapping[str, "Drawn"]) -> list[tuple[int, Beginning]]:
        """The index of the problem and the tokens of each, by problem, in the order of their first right sample."""
        return list(
            dict.fromkeys(
                (i, ids[: self.entrance_tokens])
                for i in range(len(prompts))
                for drawn in found.values()
                for ids, is_right in zip(drawn.token_ids[i], drawn.is_right[i].tolist(), strict=True)
                if is_right
            )
        )

    def _masses(
        self, policy: Policy, begun: Sequence[tuple[Prompt, Beginning]], temperature: float
    ) -> Float[Tensor, "entrances"]:
        sequences = pack([prompt for prompt, _ in begun], [beginning for _, beginning in begun])
        owners, total = sequence_of_each_token(sequences), torch.zeros(len(begun), dtype=torch.float64)
        for microbatch in microbatches(sequences, [policy], self.tokens_per_microbatch):
            logprobs = policy(microbatch, temperature=temperature).logprobs
            total.index_add_(0, owners[microbatch.token_index.cpu()], logprobs.double().cpu())
        return total.exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Samples behind some beginnings, as many for each."""

    token_ids: list[list[Beginning]]
    """Whole completions, their beginnings included."""
    is_right: Tensor
    """[beginnings, samples]"""


@dataclass
class ForcedSampler:
    """Draws completions that begin as they are told, with one engine for several models.

    Attributes:
        collector: with an engine that is started for the architecture of the models, which share tokens and their ends.
        temperature: of the samples; both models have the same seeds.
    """

    collector: Collector
    temperature: float

    def __post_init__(self) -> None:
        self._loaded: Policy | None = None
        self._version = 0

    def __call__(self, policy: Policy, begun: Sequence[tuple[Prompt, Beginning]], num_samples: int) -> Drawn:
        """`num_samples` completions for each prompt and beginning; raises as `check_engine` and `check_error_rate`."""
        own = self.collector
        self._load(policy, [prompt for prompt, _ in begun])
        owners = [pair for pair in begun for _ in range(num_samples)]
        requests = {
            index: GenerationRequest(
                prompt_token_ids=(*prompt.token_ids, *beginning),
                seed=sample_seed(own.run_seed, f"behind {beginning}", 0, prompt.id, index % num_samples),
                max_new_tokens=own.max_completion_tokens - len(beginning),
                temperature=self.temperature,
                stop_token_ids=own.stop_token_ids,
            )
            for index, (prompt, beginning) in enumerate(owners)
            if not self._is_whole(beginning)
        }
        completions = own.engine.generate([*requests.values()]) if requests else []
        check_policy_version(completions, self._version)
        behind = {index: tuple(one.token_ids) for index, one in zip(requests, completions, strict=True)}
        token_ids = [(*beginning, *behind.get(index, ())) for index, (_, beginning) in enumerate(owners)]
        with saying(f"waiting for the reward of {len(token_ids)} completions; Ctrl-C ends the measurement"):
            _, verdicts = own.score([prompt for prompt, _ in owners], token_ids)
        check_error_rate(verdicts, of="the samples")
        is_right = torch.tensor([verdict.status == "correct" for verdict in verdicts])
        starts = range(0, len(owners), num_samples)
        return Drawn(
            token_ids=[token_ids[start : start + num_samples] for start in starts],
            is_right=is_right.view(-1, num_samples),
        )

    def _is_whole(self, beginning: Beginning) -> bool:
        """Whether nothing is left to sample behind it."""
        is_ended = beginning and beginning[-1] in self.collector.stop_token_ids
        return bool(is_ended) or len(beginning) >= self.collector.max_completion_tokens

    def _load(self, policy: Policy, prompts: Sequence[Prompt]) -> None:
        if self._loaded is policy:
            return
        engine, longest = self.collector.engine, self.collector.max_completion_tokens
        self._version += 1
        publish(policy.model, engine, self._version)
        check_engine(engine, policy, prompts, max_new_tokens=longest, version=self._version)
        self._loaded = policy
