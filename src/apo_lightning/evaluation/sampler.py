"""Sampling of a benchmark on all ranks: engine → verifier and statistics → `samples.jsonl`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from apo_lightning.common.console import say, saying
from apo_lightning.contracts import Reward, TrainerState, check_error_rate, score_samples
from apo_lightning.distributed.gathering import from_all_ranks, items_of_all_ranks
from apo_lightning.evaluation.progress import Progress
from apo_lightning.evaluation.records import Sample, SamplingSettings
from apo_lightning.evaluation.samples_file import PlannedSample, SamplesFile
from apo_lightning.evaluation.scoring import POLICY_MEANS, SUPPORT_MEANS, completion_means
from apo_lightning.model.policy import Policy
from apo_lightning.rollout.collector import completion_text, sample_seed, samples_of
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.weight_sync import check_policy_version
from apo_lightning.types import GenerationRequest, Prompt


def plan_samples(prompts: Sequence[Prompt], num_samples: int, run_seed: int, benchmark: str) -> list[PlannedSample]:
    """Every sample of an evaluation, problem by problem. Seeds do not depend on the number of samples."""
    return [
        PlannedSample(prompt=prompt, sample=i, seed=sample_seed(run_seed, benchmark, 0, prompt.id, i))
        for prompt in prompts
        for i in range(num_samples)
    ]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Draws the samples that a `SamplesFile` still lacks.

    In a round every rank samples and scores one batch, and the first rank writes all of them in the order of the plan.

    Attributes:
        token_statistics: score each completion in another forward pass; without it `entropy` and `max_prob` are None.
        reference: for the support coverage, in a pass of both policies; None: not measured.
        policy_version: version under which the policy's weights were synced.
    """

    engine: RolloutEngine
    policy: Policy
    token_statistics: bool
    tokens_per_microbatch: int
    reference: Policy | None
    rank: int
    world_size: int
    policy_version: int

    def fill(self, file: SamplesFile, reward: Reward, *, benchmark: str, settings: SamplingSettings) -> None:
        """Sample, verify and write until the file holds its whole plan.

        Raises:
            ConfigError: the file belongs to another evaluation.
            VerifierError: the verifier failed on more than 1 % of a round's completions; on every rank.
            StaleWeightsError: the engine has received other weights.
        """
        [done, *_] = from_all_ranks(file.open() if self.rank == 0 else 0)
        total, size, counts = len(file.plan), file.samples_per_batch, Counter[str]()
        if done and self.rank == 0:
            say(f"{benchmark}: {done} of {total} samples exist already")
        progress = Progress(f"{benchmark}: ", "samples", done)
        for start in range(done, total, size * self.world_size):
            first = start + self.rank * size  # beyond the plan where the last round has fewer batches than ranks
            own = self._samples(file.plan[first : first + size], reward, benchmark, settings)
            samples = items_of_all_ranks(own)
            if self.rank == 0:
                file.append(samples)
            counts["samples"] += len(samples)
            counts["tokens"] += sum(sample.num_tokens for sample in samples)
            counts["correct"] += sum(sample.status == "correct" for sample in samples)
            counts["truncated"] += sum(sample.finish_reason == "length" for sample in samples)
            notes = [f"{counts[name] / counts['samples']:.1%} {name}" for name in ("correct", "truncated")]
            progress.advance(done + counts["samples"], total, counts["tokens"], notes)

    def _samples(
        self, planned: Sequence[PlannedSample], reward: Reward, benchmark: str, settings: SamplingSettings
    ) -> list[Sample]:
        """This rank's batch of a round, which may be empty; collective."""
        prompts = [sample.prompt for sample in planned]
        requests = [
            GenerationRequest(
                prompt_token_ids=sample.prompt.token_ids,
                seed=sample.seed,
                max_new_tokens=settings.max_completion_tokens,
                temperature=settings.temperature,
                top_p=settings.top_p,
                stop_token_ids=self.policy.stop_token_ids,
            )
            for sample in planned
        ]
        completions = self.engine.generate(requests)
        check_policy_version(completions, self.policy_version)
        tokenizer, token_ids = self.policy.tokenizer, [completion.token_ids for completion in completions]
        texts = [completion_text(tokenizer, ids, self.policy.stop_token_ids) for ids in token_ids]
        samples = samples_of(reward, tokenizer, prompts, token_ids, texts, TrainerState())
        with saying(f"waiting for the reward of {len(texts)} completions; Ctrl-C ends the evaluation"):
            verdicts = score_samples(reward, samples)
        check_error_rate(items_of_all_ranks(verdicts), of=f"a batch of {benchmark}")
        means: list[dict[str, float]] = [{} for _ in planned]
        if planned and (self.token_statistics or self.reference is not None):
            means = completion_means(
                self.policy,
                prompts,
                token_ids,
                temperature=settings.temperature or 1.0,
                tokens_per_microbatch=self.tokens_per_microbatch,
                reference=self.reference,
                anchor_size=settings.support_anchor_size or 0,
            )
        left_out = () if self.token_statistics else POLICY_MEANS
        return [
            Sample(
                prompt_id=sample.prompt.id,
                sample=sample.sample,
                seed=sample.seed,
                status=verdict.status,
                reward=verdict.reward,
                extracted=verdict.extracted,
                finish_reason=completion.finish_reason,
                num_tokens=len(completion.token_ids),
                logprob=sum(completion.logprobs),
                text=text,
                **{name: None if name in left_out else of_tokens.get(name) for name in POLICY_MEANS + SUPPORT_MEANS},
            )
            for sample, completion, text, verdict, of_tokens in zip(
                planned, completions, texts, verdicts, means, strict=True
            )
        ]
