"""Prompts → scored rollouts: the engine samples G completions per prompt, and the reward scores each."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from apo_lightning.common.console import saying
from apo_lightning.common.hashing import hash64
from apo_lightning.common.phases import PhaseClock
from apo_lightning.contracts import Reward, SampleReward, Samples, TrainerState, score_samples
from apo_lightning.rollout.engine import FinishedListener, RolloutEngine
from apo_lightning.types import Completion, GenerationRequest, Prompt, Rollouts, Verdict

Finished = Sequence[tuple[int, Completion]]
"""Finished completions, each with the index of its request."""


def sample_seed(run_seed: int, stream: str, step: int, prompt_id: str, sample: int) -> int:
    """The seed of one sample: a 63-bit hash of what identifies it.

    Completions therefore do not depend on batch order, number of ranks or resuming. Consecutive seeds, from a counter,
    would give neighbouring samples correlated noise.

    Example:
        >>> sample_seed(1, "train", 3, "5+7", 0) == sample_seed(1, "train", 3, "5+7", 1)
        False
    """
    key = "\x1f".join((str(run_seed), stream, str(step), prompt_id, str(sample)))
    return int.from_bytes(hash64(key), "big") >> 1


def completion_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], stop_token_ids: Sequence[int]) -> str:
    """The text of a completion, without the stop token at its end, for rewards, rollout files and evaluations.

    Every other token is kept, also special ones: an answer with a special token in it is another answer. An id unknown
    to the tokenizer adds nothing.

    Example:
        >>> from apo_lightning.model.tokenizer import character_tokenizer
        >>> tokenizer = character_tokenizer()
        >>> one, two, turn, end = tokenizer.convert_tokens_to_ids(["1", "2", "<|turn|>", "<|end|>"])
        >>> completion_text(tokenizer, [one, two, end], [end]), completion_text(tokenizer, [one, turn, two], [end])
        ('12', '1<|turn|>2')
    """
    is_ended = len(token_ids) > 0 and token_ids[-1] in stop_token_ids
    kept = list(token_ids[:-1] if is_ended else token_ids)
    # Cleaning would remove spaces, so that "4 .5" would be judged as 4.5.
    return str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def samples_of(
    reward: Reward,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    token_ids: Sequence[Sequence[int]],
    texts: Sequence[str],
    state: TrainerState,
) -> Samples:
    """What a reward reads of completions; decoded again, without special tokens, only if it reads more than texts."""
    plain_texts = texts
    if isinstance(reward, SampleReward):
        how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        plain_texts = [str(tokenizer.decode(list(ids), **how)) for ids in token_ids]
    return Samples(prompts=prompts, texts=texts, plain_texts=plain_texts, token_ids=token_ids, state=state)


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Samples completions and scores them.

    A slow reward scores finished completions while the engine still samples the others.

    Attributes:
        run_seed: the run's `seed`.
        max_completion_tokens: the length at which a completion is cut (finish reason "length").
        stop_token_ids: each of these ends a completion.
        clock: times the phases "generate" and "reward"; the latter is the time that scoring takes after the last token.
        state_at: step → state of the run, for rewards; 0 for a held-out set.
        on_finished: called as soon as a completion is finished; an exception from it ends the sampling.
    """

    engine: RolloutEngine
    reward: Reward
    tokenizer: PreTrainedTokenizerBase
    run_seed: int
    max_completion_tokens: int
    stop_token_ids: tuple[int, ...]
    clock: PhaseClock
    state_at: Callable[[int], TrainerState] = lambda step: TrainerState()
    on_finished: FinishedListener | None = None

    def collect(
        self, prompts: Sequence[Prompt], *, group_size: int, temperature: float, step: int, stream: str
    ) -> Rollouts:
        """Sample `group_size` completions of each prompt and score them.

        `step` and `stream` ("train" or the name of a held-out set) are part of the seeds, so that a prompt is sampled
        differently at each step. A held-out set always uses the same step: its results differ by the policy alone.
        """
        requests = [
            GenerationRequest(
                prompt_token_ids=prompt.token_ids,
                seed=sample_seed(self.run_seed, stream, step, prompt.id, sample),
                max_new_tokens=self.max_completion_tokens,
                temperature=temperature,
                stop_token_ids=self.stop_token_ids,
            )
            for prompt in prompts
            for sample in range(group_size)
        ]
        metrics: dict[str, list[float]] = {}
        scored: dict[int, tuple[str, Verdict]] = {}

        def score(finished: Finished) -> None:
            owners = [prompts[index // group_size] for index, _ in finished]
            token_ids = [completion.token_ids for _, completion in finished]
            pairs = zip(*self.score(owners, token_ids, step=step, metrics=metrics), strict=True)
            scored.update(zip((index for index, _ in finished), pairs, strict=True))

        completions = self._generate_and_score(requests, score)
        texts, verdicts = zip(*(scored[index] for index in range(len(requests))), strict=True)
        return Rollouts(
            step=step,
            prompts=tuple(prompts),
            completions=tuple(completions),
            texts=texts,
            verdicts=verdicts,
            group_size=group_size,
            policy_version=completions[0].policy_version,
            num_preempted=self.engine.num_preempted,
            max_completion_tokens=self.max_completion_tokens,
            reward_metrics={name: tuple(values) for name, values in metrics.items()},
        )

    def text(self, token_ids: Sequence[int]) -> str:
        """The text that the reward scores; see `completion_text`."""
        return completion_text(self.tokenizer, token_ids, self.stop_token_ids)

    def score(
        self,
        prompts: Sequence[Prompt],
        token_ids: Sequence[Sequence[int]],
        *,
        step: int = 0,
        metrics: dict[str, list[float]] | None = None,
    ) -> tuple[list[str], list[Verdict]]:
        """Texts and verdicts of completions, given the prompt of each; numbers that the reward logs go to `metrics`."""
        texts = [self.text(ids) for ids in token_ids]
        samples = samples_of(self.reward, self.tokenizer, prompts, token_ids, texts, self.state_at(step))
        return texts, score_samples(self.reward, replace(samples, metrics={} if metrics is None else metrics))

    def _generate_and_score(
        self, requests: Sequence[GenerationRequest], score: Callable[[Finished], None]
    ) -> list[Completion]:
        """Completions in the order of the requests; `score` gets each of them once, in batches."""
        is_overlapped: bool = getattr(self.reward, "SCORES_WHILE_GENERATING", False)
        with ThreadPoolExecutor(1, thread_name_prefix="background scoring") as thread:
            waiting: list[tuple[int, Completion]] = []
            calls: list[Future[None]] = []

            def score_waiting() -> None:
                """Wait for the last call of `score`, raise what it raised, and begin the next if anything waits."""
                for call in calls:
                    call.result()
                calls[:] = [thread.submit(score, tuple(waiting))] if waiting else []
                waiting.clear()

            def finished(index: int, completion: Completion) -> None:
                waiting.append((index, completion))
                if all(call.done() for call in calls):
                    score_waiting()
                if self.on_finished is not None:
                    self.on_finished(index, completion)

            with self.clock.phase("generate"):
                completions = self.engine.generate(requests, finished if is_overlapped else self.on_finished)
            waiting_for = f"waiting for the reward of {len(requests)} completions; Ctrl-C twice ends the run"
            with self.clock.phase("reward"), saying(waiting_for):
                if is_overlapped:
                    score_waiting()
                    score_waiting()  # nothing waits any more: this waits for the call before
                else:
                    score(list(enumerate(completions)))
        return completions
