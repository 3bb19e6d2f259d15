"""Prompts → scored rollouts: asks the engine for G completions a prompt and the verifier for a verdict on each."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from apo_lightning.common.hashing import hash64
from apo_lightning.common.phases import PhaseClock
from apo_lightning.model.tokenizer import completion_text
from apo_lightning.rewards import Reward
from apo_lightning.rewards.reward import is_scored_while_generating
from apo_lightning.rollout.background import BackgroundBatches
from apo_lightning.rollout.engine import FinishedListener, RolloutEngine
from apo_lightning.types import Completion, GenerationRequest, Prompt, Rollouts, Verdict


def sample_seed(run_seed: int, stream: str, step: int, prompt_id: str, sample: int) -> int:
    """The seed of one sample: a 63-bit hash of what the sample *is*, not of when or where it is drawn.

    So batch order, the number of ranks and a resume leave the completions as they are, and neighbouring samples do
    not share noise, as they would with a counter.

    Example:
        >>> sample_seed(1, "train", 3, "5+7", 0) == sample_seed(1, "train", 3, "5+7", 0)
        True
        >>> sample_seed(1, "train", 3, "5+7", 0) == sample_seed(1, "train", 3, "5+7", 1)
        False
    """
    key = "\x1f".join((str(run_seed), stream, str(step), prompt_id, str(sample)))
    return int.from_bytes(hash64(key), "big") >> 1


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Samples and scores.

    A reward that takes time scores what is finished while the engine still works on the rest.

    Attributes:
        engine: where completions come from.
        reward: who judges them.
        tokenizer: decodes them.
        run_seed: the run's `seed`.
        max_completion_tokens: a completion is cut there, finish reason "length".
        stop_token_ids: a completion ends with any of these.
        clock: told of the phases "generate" and "reward", the second being what scoring takes after the last token.
        on_finished: also told of each completion the moment it is finished; what it raises ends the sampling.
    """

    engine: RolloutEngine
    reward: Reward
    tokenizer: PreTrainedTokenizerBase
    run_seed: int
    max_completion_tokens: int
    stop_token_ids: tuple[int, ...]
    clock: PhaseClock
    on_finished: FinishedListener | None = None

    def collect(
        self, prompts: Sequence[Prompt], *, group_size: int, temperature: float, step: int, stream: str
    ) -> Rollouts:
        """Draw `group_size` completions of each prompt and judge them.

        Args:
            prompts: the step's problems.
            group_size: completions a prompt.
            temperature: of the sampling.
            step: enters the seeds, so that a prompt that comes back is sampled anew. A held-out set is sampled with
                the same step each time: before and after then differ by the policy alone.
            stream: "train" or the name of a held-out set; enters the seeds.
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
        answers = [prompt.answer for prompt in prompts for _ in range(group_size)]
        completions, texts, verdicts = self._generate_and_score(requests, answers)
        return Rollouts(
            step=step,
            prompts=tuple(prompts),
            completions=tuple(completions),
            texts=tuple(texts),
            verdicts=tuple(verdicts),
            group_size=group_size,
            policy_version=completions[0].policy_version,
            num_preempted=self.engine.num_preempted,
        )

    def text(self, token_ids: Sequence[int]) -> str:
        """The text that the reward sees; see `completion_text`."""
        return completion_text(self.tokenizer, token_ids, self.stop_token_ids)

    def _generate_and_score(
        self, requests: Sequence[GenerationRequest], answers: Sequence[str]
    ) -> tuple[list[Completion], list[str], list[Verdict]]:
        """Completions, their texts and verdicts, in the order of the requests."""
        judged: dict[int, tuple[str, Verdict]] = {}

        def judge(finished: Sequence[tuple[int, Completion]]) -> None:
            indices = [index for index, _ in finished]
            texts = [self.text(completion.token_ids) for _, completion in finished]
            verdicts = self.reward.score(texts, [answers[index] for index in indices])
            judged.update(zip(indices, zip(texts, verdicts, strict=True), strict=True))

        if is_scored_while_generating(self.reward):
            with BackgroundBatches(judge) as scoring:

                def put(index: int, completion: Completion) -> None:
                    scoring.put((index, completion))
                    if self.on_finished is not None:
                        self.on_finished(index, completion)

                with self.clock.phase("generate"):
                    completions = self.engine.generate(requests, put)
                with self.clock.phase("reward"):
                    scoring.finish()
        else:
            with self.clock.phase("generate"):
                completions = self.engine.generate(requests, self.on_finished)
            with self.clock.phase("reward"):
                judge(list(enumerate(completions)))
        texts, verdicts = zip(*(judged[index] for index in range(len(requests))), strict=True)
        return completions, list(texts), list(verdicts)
