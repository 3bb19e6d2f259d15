"""All answers of a puzzle's problems, packed so that a model scores them in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from apo_lab.puzzles import ListedAnswer, Puzzle
from apo_lab.statistics.exact import AnswerScores
from apo_lightning.data import PromptDataModule
from apo_lightning.data.sources import ProblemSource
from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.types import Prompt


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

    @property
    def starts(self) -> Bool[Tensor, "tokens"]:
        """Whether a token is the first of its answer."""
        return torch.nn.functional.pad(self.owner.diff(), (1, 0), value=1) > 0

    @torch.no_grad()
    def statistics(self, policy: Policy, *, temperature: float) -> Float[Tensor, "tokens 3"]:
        """Log-prob [nats], entropy [nats] and largest probability at every token, by one forward pass."""
        columns = torch.zeros(len(self.owner), 3, dtype=torch.float64)
        for microbatch in self.microbatches:
            found = policy(microbatch, temperature=temperature)
            parts = (found.logprobs, found.entropy, found.max_prob)
            columns[microbatch.token_index.cpu()] = torch.stack(parts, dim=1).double().cpu()
        return columns


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
        beginning=_common_beginning([prompt.token_ids for prompt in prompts]),
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


def _common_beginning(prompts: Sequence[tuple[int, ...]]) -> int:
    """The number of tokens that all prompts begin with, as four common examples, if they are most of each prompt."""
    found = sum(takewhile(bool, (len({*ids}) == 1 for ids in zip(*prompts, strict=False))))
    return found if found < min(map(len, prompts)) and 2 * found > max(map(len, prompts)) else 0


def held_out_prompts(
    source: ProblemSource, tokenizer: PreTrainedTokenizerBase, prompt_template: str | None
) -> list[Prompt]:
    """The prompts of a source's held-out problems for one model; those of a puzzle are one set."""
    data = PromptDataModule(source, tokenizer, prompts_per_step=1, seed=0, prompt_template=prompt_template)
    data.prepare()
    return [prompt for of_set in data.validation_prompts.values() for prompt in of_set]
