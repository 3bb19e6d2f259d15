"""Samples a benchmark: engine → verifier and statistics → `samples.jsonl`, over as many ranks as there are."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from apo_lightning.distributed.gathering import from_all_ranks, items_of_all_ranks
from apo_lightning.evaluation.progress import Progress
from apo_lightning.evaluation.records import Sample
from apo_lightning.evaluation.samples_file import PlannedSample, SamplesFile
from apo_lightning.evaluation.scoring import CompletionStatistics, score_completions
from apo_lightning.evaluation.support import CompletionSupport, support_statistics
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import completion_text
from apo_lightning.rewards import Reward
from apo_lightning.rewards.verdicts import check_error_rate
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.weight_sync import check_policy_version
from apo_lightning.types import Completion, GenerationRequest, Prompt, Verdict


def plan_samples(prompts: Sequence[Prompt], num_samples: int, run_seed: int, benchmark: str) -> list[PlannedSample]:
    """Every sample of an evaluation, problem by problem. A sample's seed does not depend on how many there are."""
    return [
        PlannedSample(prompt=prompt, sample=i, seed=sample_seed(run_seed, benchmark, 0, prompt.id, i))
        for prompt in prompts
        for i in range(num_samples)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Sampled; its verdicts may still be on their way."""

    planned: Sequence[PlannedSample]
    completions: Sequence[Completion]
    statistics: Sequence[CompletionStatistics | None]
    support: Sequence[CompletionSupport | None]
    texts: Sequence[str]
    verdicts: Future[list[Verdict]]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Draws the samples that a `SamplesFile` still lacks.

    In a round every rank takes one batch, and the first rank writes them all in the order of the plan. The engine
    works on the next batch while the verifier judges the last one.

    Attributes:
        engine: holds the policy's weights.
        policy: for entropy and max-prob.
        temperature: of the sampling; 0 is greedy.
        top_p: of the sampling.
        token_statistics: run the policy over each completion once more; without it `entropy` and `max_prob` are None.
        tokens_per_microbatch: of that pass.
        reference: for the support coverage, a further pass of both policies; None: do not measure it.
        anchor_size: K of the support.
        rank: of this process.
        world_size: processes that share the work.
        policy_version: under which the policy's weights were synced.
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

    def fill(self, file: SamplesFile, reward: Reward, *, max_completion_tokens: int, progress: Progress) -> None:
        """Draw, judge and write until the file holds its whole plan.

        Args:
            file: of the benchmark.
            reward: judges its completions; called from a thread.
            max_completion_tokens: a completion is cut there.
            progress: told of every batch.

        Raises:
            ConfigError: the file belongs to another evaluation.
            VerifierError: the verifier failed on more than 1 % of what all ranks judged in a round; on every rank.
            StaleWeightsError: the engine was synced since.
        """
        [done, *_] = from_all_ranks(file.open() if self.rank == 0 else 0)
        progress.start(done, len(file.plan))
        try:
            self._draw(file, done, reward, max_completion_tokens, progress)
        finally:
            progress.stop()
        file.close()

    def _draw(
        self, file: SamplesFile, done: int, reward: Reward, max_completion_tokens: int, progress: Progress
    ) -> None:
        written: _Batch | None = None
        # One verdict thread: a reward is not made for two callers at once.
        with ThreadPoolExecutor(max_workers=1) as verifier:
            for batch in self._my_batches(file, done):
                completions = self._sample(batch, max_completion_tokens)
                tokenizer, stops = self.policy.tokenizer, self.policy.stop_token_ids
                texts = [completion_text(tokenizer, completion.token_ids, stops) for completion in completions]
                verdicts = verifier.submit(reward.score, texts, [planned.prompt.answer for planned in batch])
                sampled = _Batch(
                    planned=batch,
                    completions=completions,
                    statistics=self._statistics(batch, completions),
                    support=self._support(batch, completions),
                    texts=texts,
                    verdicts=verdicts,
                )
                if written is not None:
                    self._write(file, written, progress)
                written = sampled
            if written is not None:
                self._write(file, written, progress)

    def _my_batches(self, file: SamplesFile, done: int) -> Iterator[Sequence[PlannedSample]]:
        """One batch a round; empty where a last round has fewer batches than there are ranks."""
        size = file.samples_per_batch
        for start in range(done, len(file.plan), size * self.world_size):
            first = start + self.rank * size
            yield file.plan[first : first + size]

    def _sample(self, batch: Sequence[PlannedSample], max_completion_tokens: int) -> list[Completion]:
        stop_token_ids = self.policy.stop_token_ids
        completions = self.engine.generate(
            [
                GenerationRequest(
                    prompt_token_ids=planned.prompt.token_ids,
                    seed=planned.seed,
                    max_new_tokens=max_completion_tokens,
                    temperature=self.temperature,
                    top_p=self.top_p,
                    stop_token_ids=stop_token_ids,
                )
                for planned in batch
            ]
        )
        check_policy_version(completions, self.policy_version)
        return completions

    def _statistics(
        self, batch: Sequence[PlannedSample], completions: Sequence[Completion]
    ) -> Sequence[CompletionStatistics | None]:
        if not self.token_statistics or not batch:
            return [None] * len(batch)
        return score_completions(
            self.policy,
            [planned.prompt for planned in batch],
            [completion.token_ids for completion in completions],
            temperature=self.temperature or 1.0,
            tokens_per_microbatch=self.tokens_per_microbatch,
        )

    def _support(
        self, batch: Sequence[PlannedSample], completions: Sequence[Completion]
    ) -> Sequence[CompletionSupport | None]:
        if self.reference is None or not batch:
            return [None] * len(batch)
        return support_statistics(
            self.policy,
            self.reference,
            [planned.prompt for planned in batch],
            [completion.token_ids for completion in completions],
            anchor_size=self.anchor_size,
            temperature=self.temperature or 1.0,
            tokens_per_microbatch=self.tokens_per_microbatch,
        )

    def _write(self, file: SamplesFile, batch: _Batch, progress: Progress) -> None:
        verdicts = batch.verdicts.result()
        check_error_rate(items_of_all_ranks(verdicts), of=f"a batch of {progress.benchmark}")
        mine = [
            Sample(
                prompt_id=planned.prompt.id,
                sample=planned.sample,
                seed=planned.seed,
                status=verdict.status,
                reward=verdict.reward,
                extracted=verdict.extracted,
                finish_reason=completion.finish_reason,
                num_tokens=len(completion.token_ids),
                logprob=sum(completion.logprobs),
                entropy=None if statistics is None else statistics.mean_entropy,
                max_prob=None if statistics is None else statistics.mean_max_prob,
                support_coverage=None if support is None else support.coverage,
                outside_support=None if support is None else support.outside_fraction,
                text=text,
            )
            for planned, completion, statistics, support, text, verdict in zip(
                batch.planned,
                batch.completions,
                batch.statistics,
                batch.support,
                batch.texts,
                verdicts,
                strict=True,
            )
        ]
        samples = items_of_all_ranks(mine)
        if self.rank == 0:
            file.append(samples)
        progress.add(samples)
