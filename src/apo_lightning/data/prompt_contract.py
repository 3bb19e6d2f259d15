"""What a model must be able to do with its prompts: read every token, begin where they end, and end a completion."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from transformers import AddedToken, PreTrainedTokenizerBase

from apo_lightning.data.chat_format import REMEDY, ChatFormat
from apo_lightning.errors import ConfigError
from apo_lightning.model.spec import PolicySpec
from apo_lightning.model.tokenizer import stop_token_id
from apo_lightning.types import Prompt

MOST_LOST = 0.1
"""Share of prompts with characters that the tokenizer loses, above which a model is refused."""
SHOWN = 8
"""Tokens shown of the beginning and of the end of a prompt."""


def check_prompts_of_model(
    prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, spec: PolicySpec
) -> list[str]:
    """Check all prompts of a run against its model, of which no weights are read.

    Returns:
        Lines for the log: the first prompt as text and as tokens, and what is unusual about the prompts.

    Raises:
        ConfigError: a token is outside the embedding, a prompt begins or ends with a token too many, completions would
            not end where the assistant's turn does, or more than `MOST_LOST` of the prompts lose characters (those of a
            random model may: its tokenizer reads ASCII).
    """
    added: dict[int, AddedToken] = tokenizer.added_tokens_decoder  # pyright: ignore[reportAssignmentType]
    special = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
    reader = _Reader(tokenizer, spec, {*added}, {i for i in special if i != tokenizer.unk_token_id})
    size = spec.load_config().get_text_config().vocab_size
    stops = [i for i in spec.stop_token_ids(tokenizer) if i < size]
    for prompt in prompts:
        reader.check_tokens(prompt, size)
    chat = None
    if (messages := prompts[0].messages) is not None:
        chat = ChatFormat.of(tokenizer, messages[:-1])
    reader.check_stops(stops, chat)
    lines = reader.show(prompts[0], stops)
    if chat is not None and chat.reads_parts:
        lines.append(f"{chat.name} reads content parts, and is given the messages as such")
    losses = {prompt.id: lost for prompt in prompts if (lost := reader.lost(prompt))}
    for row, lost in [*losses.items()][:1]:
        lines.append(
            f"{len(losses)} of {len(prompts)} prompts have characters that the tokenizer loses, first {lost!r} in "
            f"problem '{row}': correct its tokenizer_class, choose another model, or leave such problems out"
        )
        if spec.path is not None and len(losses) > MOST_LOST * len(prompts):
            raise ConfigError(lines[-1])
    return lines


@dataclass(frozen=True)
class _Reader:
    tokenizer: PreTrainedTokenizerBase
    spec: PolicySpec
    added: set[int]
    """Ids of tokens that were added to the tokenizer's vocabulary, such as `<think>`."""
    special: set[int]
    """Ids that are no text, without the unknown token."""

    def check_tokens(self, prompt: Prompt, vocab_size: int) -> None:
        """Refuse ids without a row in the embedding, a doubled beginning, and an end before the completion."""
        ids, where = prompt.token_ids, f"the prompt of problem '{prompt.id}'"
        if not ids:
            raise ConfigError(f"{where} has no tokens: {REMEDY}")
        if max(ids) >= vocab_size:
            raise ConfigError(
                f"{where} has the token {self.name(max(ids))}, and the model's embedding has {vocab_size} rows: give "
                "the tokenizer that the model was trained with"
            )
        source = "model.prompt_template" if prompt.messages is None else "the chat template"
        if ids[:2] == (self.tokenizer.bos_token_id,) * 2:
            raise ConfigError(f"{where} begins with {self.name(ids[0])} twice: take it out of {source}")
        is_appended = ids[-1] in self.special and not prompt.text.endswith(self.piece(ids[-1]))
        if is_appended or ids[-1] == self.tokenizer.eos_token_id:
            source = "the post_processor of tokenizer.json" if is_appended else source
            raise ConfigError(
                f"{where} ends with {self.name(ids[-1])}, so that a completion would follow an end: take it out of "
                f"{source}"
            )

    def check_stops(self, stops: Sequence[int], chat: ChatFormat | None) -> None:
        """Refuse a model whose completions end nowhere, in the midst of text, or later than the assistant's turn."""
        if not stops:
            raise ConfigError(
                f"nothing ends a completion of {self.spec.name}: neither its tokenizer nor its config names an "
                "end-of-sequence token inside the embedding; give model.stop_tokens=['<the token>']"
            )
        known = self.added | self.special | {stop_token_id(self.tokenizer, token) for token in self.spec.stop_tokens}
        if ordinary := [i for i in stops if i < len(self.tokenizer) and i not in known]:
            raise ConfigError(
                f"eos_token_id of the model's config is {self.name(ordinary[0])}, an ordinary token, which would cut "
                "completions short: correct config.json and generation_config.json"
            )
        ends = self._ends_of_turn(chat)
        if ends and not set(ends) & set(stops):
            raise ConfigError(
                f"the template ends a turn with {self.name(ends[0])}, which is no stop token (they are "
                f"{', '.join(map(self.name, stops))}), so that completions would run on: give "
                f"model.stop_tokens=[{self.piece(ends[0])!r}]"
            )

    def _ends_of_turn(self, chat: ChatFormat | None) -> list[int]:
        """The adjacent tokens that end an assistant's turn in the template; empty where it writes none."""
        written = self.spec.prompt_template or ""
        if chat is None:
            # In ChatML the user's turn ends as the assistant's does, and more marks open the latter.
            after_problem = [i for i in self._encode(written.rpartition("{problem}")[2]) if i in self.special]
            return after_problem[:1] if len(after_problem) > 1 else []
        _, last, between = chat.around_answer()
        mark = re.match(r"\s*(<[^<>\s]+>)", last)
        if mark is None or self._marks(last):
            return self._marks(last) or self._marks(between)
        ends = self._encode(mark[1])
        if len(ends) > 1:
            raise ConfigError(
                f"the chat template ends the assistant's turn with {mark[1]!r}, of which the tokenizer makes "
                f"{len(ends)} tokens, so that no stop token ends a completion there: add it to the tokenizer, or "
                f"{REMEDY}"
            )
        return ends

    def _marks(self, text: str) -> list[int]:
        ids = dropwhile(lambda i: i not in self.special, self._encode(text))
        return list(takewhile(self.special.__contains__, ids))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def show(self, prompt: Prompt, stops: Sequence[int]) -> list[str]:
        """The prompt as text and as tokens, both cut in the middle."""
        text = prompt.text if len(prompt.text) <= 240 else f"{prompt.text[:120]} … {prompt.text[-120:]}"
        tokens = [self.name(i) for i in prompt.token_ids]
        if len(tokens) > 2 * SHOWN:
            tokens = [*tokens[:SHOWN], "…", *tokens[-SHOWN:]]
        ends = " or ".join(map(self.name, stops))
        return [
            f"first prompt of {prompt.source}: {text!r}",
            f"its {len(prompt.token_ids)} tokens: {' '.join(tokens)}; a completion ends with {ends}",
        ]

    def lost(self, prompt: Prompt) -> str:
        """The first characters that the tokens do not give back; Unicode's equivalents may, and blanks at marks."""
        back = str(self.tokenizer.decode(list(prompt.token_ids), clean_up_tokenization_spaces=False))
        # Before the text stands what the tokenizer puts before any text.
        if back.endswith(prompt.text):
            return ""
        if len(back.split()) < len(prompt.problem.split()):
            return " "
        if (back := _comparable(back)).endswith(text := _comparable(prompt.text)):
            return ""
        lost = [character for character in dict.fromkeys(text) if text.count(character) > back.count(character)]
        return "".join(lost[:5]) or text[:20]

    def piece(self, token_id: int) -> str:
        """The text of a token."""
        return str(self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False))

    def name(self, token_id: int) -> str:
        """A token in a message: its id and its text."""
        return f"{token_id} {self.piece(token_id)!r}"


def _comparable(text: str) -> str:
    # SentencePiece writes a blank as ▁ and drops control characters.
    return "".join(c for c in unicodedata.normalize("NFKC", text) if c.isprintable() and c not in " ▁")
