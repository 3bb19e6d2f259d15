"""Sampling of a benchmark on all ranks: engine → verifier and statistics → `samples.jsonl`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from apo_lightning.common.console import say
from apo_lightning.distributed.gathering import from_all_ranks, items_of_all_ranks
from apo_lightning.evaluation.progress import Progress
from apo_lightning.evaluation.records import Sample
from apo_lightning.evaluation.samples_file import PlannedSample, SamplesFile
from apo_lightning.evaluation.scoring import POLICY_MEANS, SUPPORT_MEANS, completion_means
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import completion_text
from apo_lightning.rewards import Reward
from apo_lightning.rewards.reward import TrainerState, score_samples
from apo_lightning.rewards.verdicts import check_error_rate
from apo_lightning.rollout.collector import sample_seed, samples_of
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.weight_sync import check_policy_version
from apo_lightning.types import Completion, GenerationRequest, Prompt, Verdict


def plan_samples(prompts: Sequence[Prompt], num_samples: int, run_seed: int, benchmark: str) -> list[PlannedSample]:
    """Every sample of an evaluation, problem by problem. Seeds do not depend on the number of samples."""
    return [
        PlannedSample(prompt=prompt, sample=i, seed=sample_seed(run_seed, benchmark, 0, prompt.id, i))
        for prompt in prompts
        for i in range(num_samples)
    ]


_Batch = tuple[Sequence[Mapping[str, Any]], Future[list[Verdict]]]
"""The fields of each `Sample` that do not depend on its verdict, and the verdicts, which may still be pending."""


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Draws the samples that a `SamplesFile` still lacks.

    In a round every rank samples one batch, and the first rank writes all of them in the order of the plan. The engine
    samples the next batch while the verifier works on the previous one.

    Attributes:
        engine: holds the weights of `policy`.
        temperature: sampling temperature; 0 is greedy.
        token_statistics: score each completion in another forward pass; without it `entropy` and `max_prob` are None.
        tokens_per_microbatch: of that pass.
        reference: for the support coverage, in a pass of both policies; None: not measured.
        anchor_size: K of the support.
        policy_version: version under which the policy's weights were synced.
    """

    engine: RolloutEngine
    policy: Policy
    temperature: float
    top_p: float
    token_statistics: bool
    tokens_per_microbatch: int
    reference: Policy | None = None
    anchor_size: int = 0
    rank: int = 0
    world_size: int = 1
    policy_version: int = 1

    def fill(self, file: SamplesFile, reward: Reward, *, benchmark: str, max_completion_tokens: int) -> None:
        """Sample, verify (in a thread) and write until the file holds its whole plan.

        Raises:
            ConfigError: the file belongs to another evaluation.
            VerifierError: the verifier failed on more than 1 % of a round's completions; on every rank.
            StaleWeightsError: the engine has received other weights.
        """
        [done, *_] = from_all_ranks(file.open() if self.rank == 0 else 0)
        total, new, counts = len(file.plan), 0, Counter[str]()
        if done and self.rank == 0:
            say(f"{benchmark}: {done} of {total} samples exist already")
        with Progress(f"{benchmark}: ", "samples", is_shown=self.rank == 0 and done < total) as progress:
            progress.start(done, total)
            for samples in self._batches(file, done, reward, benchmark, max_completion_tokens):
                if self.rank == 0:
                    file.append(samples)
                new += len(samples)
                counts["tokens"] += sum(sample.num_tokens for sample in samples)
                counts["correct"] += sum(sample.status == "correct" for sample in samples)
                counts["truncated"] += sum(sample.finish_reason == "length" for sample in samples)
                notes = [f"{counts[name] / new:.1%} {name}" for name in ("correct", "truncated")]
                progress.advance(done + new, total, counts["tokens"], notes)

    def _batches(
        self, file: SamplesFile, done: int, reward: Reward, benchmark: str, max_completion_tokens: int
    ) -> Iterator[list[Sample]]:
        """The samples of all ranks, round by round."""
        previous: _Batch | None = None
        # One thread: a reward need not be thread-safe.
        with ThreadPoolExecutor(max_workers=1) as verifier:
            # One batch per round; empty where the last round has fewer batches than ranks.
            for start in range(done, len(file.plan), file.samples_per_batch * self.world_size):
                first = start + self.rank * file.samples_per_batch
                planned = file.plan[first : first + file.samples_per_batch]
                completions = self._sample(planned, max_completion_tokens)
                tokenizer, stops = self.policy.tokenizer, self.policy.stop_token_ids
                texts = [completion_text(tokenizer, completion.token_ids, stops) for completion in completions]
                token_ids = [completion.token_ids for completion in completions]
                prompts = [sample.prompt for sample in planned]
                samples = samples_of(reward, tokenizer, prompts, token_ids, texts, TrainerState())
                verdicts = verifier.submit(score_samples, reward, samples)
                fields = self._fields(planned, completions, texts)
                if previous is not None:
                    yield _judged(previous, benchmark)
                previous = fields, verdicts
            if previous is not None:
                yield _judged(previous, benchmark)

    def _sample(self, batch: Sequence[PlannedSample], max_completion_tokens: int) -> list[Completion]:
        completions = self.engine.generate(
            [
                GenerationRequest(
                    prompt_token_ids=planned.prompt.token_ids,
                    seed=planned.seed,
                    max_new_tokens=max_completion_tokens,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    stop_token_ids=self.policy.stop_token_ids,
                )
                for planned in batch
            ]
        )
        check_policy_version(completions, self.policy_version)
        return completions

    def _fields(
        self, planned: Sequence[PlannedSample], completions: Sequence[Completion], texts: Sequence[str]
    ) -> list[dict[str, Any]]:
        fields = [
            {
                "prompt_id": sample.prompt.id,
                "sample": sample.sample,
                "seed": sample.seed,
                "finish_reason": completion.finish_reason,
                "num_tokens": len(completion.token_ids),
                "logprob": sum(completion.logprobs),
                "text": text,
            }
            | dict.fromkeys((*POLICY_MEANS, *SUPPORT_MEANS))
            for sample, completion, text in zip(planned, completions, texts, strict=True)
        ]
        if planned and (self.token_statistics or self.reference is not None):
            means = completion_means(
                self.policy,
                [sample.prompt for sample in planned],
                [completion.token_ids for completion in completions],
                temperature=self.temperature or 1.0,
                tokens_per_microbatch=self.tokens_per_microbatch,
                reference=self.reference,
                anchor_size=self.anchor_size,
            )
            names = POLICY_MEANS + SUPPORT_MEANS if self.token_statistics else SUPPORT_MEANS
            for sample, own in zip(fields, means, strict=True):
                sample |= {name: own[name] for name in names if name in own}
        return fields


def _judged(batch: _Batch, benchmark: str) -> list[Sample]:
    """The samples of all ranks with their verdicts; collective."""
    verdicts = batch[1].result()
    check_error_rate(items_of_all_ranks(verdicts), of=f"a batch of {benchmark}")
    own = [
        Sample(**fields, status=verdict.status, reward=verdict.reward, extracted=verdict.extracted)
        for fields, verdict in zip(batch[0], verdicts, strict=True)
    ]
    return items_of_all_ranks(own)
