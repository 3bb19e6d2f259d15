"""What a model must be able to do with its prompts: read every token, begin where they end, and end a completion."""

import re
import unicodedata
from collections.abc import Container, Sequence
from itertools import dropwhile, takewhile

from transformers import PreTrainedTokenizerBase

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
        Lines for the log: the first prompt as text and as tokens, and characters that the tokenizer loses.

    Raises:
        ConfigError: a token is outside the embedding, a prompt begins or ends with a token too many, completions would
            not end where the assistant's turn does, or more than `MOST_LOST` of the prompts lose characters (those of a
            random model may: its tokenizer reads ASCII).
    """
    vocab_size, stop_ids = spec.load_config().get_text_config().vocab_size, spec.stop_token_ids(tokenizer)
    added: dict[str, int] = tokenizer.get_added_vocab()  # pyright: ignore[reportCallIssue, reportOptionalCall]
    special = {i for i in (*tokenizer.all_special_ids, *added.values()) if i != tokenizer.unk_token_id}
    for prompt in prompts:
        _check_tokens(prompt, tokenizer, special, vocab_size)
    _check_stops(prompts[0], tokenizer, spec, special, [i for i in stop_ids if i < vocab_size])
    lines = _first_prompt(prompts[0], tokenizer, stop_ids)
    losses = {prompt.id: lost for prompt in prompts if (lost := _lost(prompt, tokenizer))}
    if losses:
        row, lost = next(iter(losses.items()))
        lines.append(
            f"{len(losses)} of {len(prompts)} prompts have characters that the tokenizer loses, first {lost!r} in "
            f"problem '{row}': choose another model, or leave such problems out"
        )
        if spec.path is not None and len(losses) > MOST_LOST * len(prompts):
            raise ConfigError(lines[-1])
    return lines


def _check_tokens(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, special: Container[int], vocab_size: int) -> None:
    ids, bos, where = prompt.token_ids, tokenizer.bos_token_id, f"the prompt of problem '{prompt.id}'"
    if not ids:
        raise ConfigError(f"{where} has no tokens: {REMEDY}")
    if max(ids) >= vocab_size:
        raise ConfigError(
            f"{where} has the token {_token(tokenizer, max(ids))}, and the model's embedding has {vocab_size} rows: "
            "give the tokenizer that the model was trained with"
        )
    if ids[0] == bos and ids[1:2] == (bos,):
        by = "chat template" if prompt.messages is not None else "model.prompt_template"
        raise ConfigError(
            f"{where} begins with {_token(tokenizer, ids[0])} twice, as template and tokenizer both write it: take it "
            f"out of the {by}"
        )
    is_end = ids[-1] in special and not prompt.text.endswith(str(tokenizer.decode([ids[-1]])))
    if is_end or ids[-1] == tokenizer.eos_token_id:
        by = "tokenizer" if is_end else "template"
        raise ConfigError(
            f"{where} ends with {_token(tokenizer, ids[-1])}, which the {by} appends: the completion would follow "
            f"the end; take it out of {'the post_processor of tokenizer.json' if is_end else 'the template'}"
        )


def _check_stops(
    first: Prompt,
    tokenizer: PreTrainedTokenizerBase,
    spec: PolicySpec,
    special: Container[int],
    stop_ids: Sequence[int],
) -> None:
    """Refuse a model whose completions end nowhere, in the midst of text, or later than the assistant's turn."""
    if not stop_ids:
        raise ConfigError(
            f"nothing ends a completion of {spec.name}: neither its tokenizer nor its config names an end-of-sequence "
            "token inside the embedding; give model.stop_tokens=['<the token>']"
        )
    named = [stop_token_id(tokenizer, token) for token in spec.stop_tokens]
    for i in stop_ids:
        if i < len(tokenizer) and i not in special and i not in named:
            raise ConfigError(
                f"eos_token_id of the model's config is {_token(tokenizer, i)}, an ordinary token, which would cut "
                "completions short: correct config.json and generation_config.json"
            )
    ends = _ends_of_turn(first, tokenizer, spec, special)
    if ends and not set(ends) & set(stop_ids):
        raise ConfigError(
            f"the template ends a turn with {_token(tokenizer, ends[0])}, which is no stop token (they are "
            f"{', '.join(_token(tokenizer, i) for i in stop_ids)}), so that completions would run on: give "
            f"model.stop_tokens=[{_piece(tokenizer, ends[0])}]"
        )


def _ends_of_turn(
    first: Prompt, tokenizer: PreTrainedTokenizerBase, spec: PolicySpec, special: Container[int]
) -> list[int]:
    """The tokens that end an assistant's turn in the template, one behind the other; empty where it writes none."""

    def marks(text: str) -> list[int]:
        ids = dropwhile(lambda i: i not in special, tokenizer.encode(text, add_special_tokens=False))
        return list(takewhile(lambda i: i in special, ids))

    written = spec.prompt_template
    if tokenizer.chat_template is None:
        # Of ChatML: the user's turn ends as the assistant's does, and the marks behind open the latter.
        tail = tokenizer.encode((written or "").rpartition("{problem}")[2], add_special_tokens=False)
        return [i for i in tail if i in special][:1] if sum(i in special for i in tail) > 1 else []
    try:
        _, last, between = ChatFormat.of(tokenizer, (first.messages or ())[:-1]).around_answer()
    except ConfigError:  # of a template that `written` replaces
        return []
    mark = re.match(r"\s*(<[^<>\s]+>)", last)
    if mark and not marks(last):
        ends = tokenizer.encode(mark[1], add_special_tokens=False)
        if len(ends) > 1 and written is None:
            raise ConfigError(
                f"the chat template ends the assistant's turn with {mark[1]!r}, of which the tokenizer makes "
                f"{len(ends)} tokens, so that no stop token ends a completion there: add it to the tokenizer, or "
                f"{REMEDY}"
            )
    else:
        ends = marks(last) or marks(between)
    return ends if written is None or (ends and str(tokenizer.decode(ends[:1])) in written) else []


def _first_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> list[str]:
    tokens = [_token(tokenizer, i) for i in prompt.token_ids]
    if len(tokens) > 2 * SHOWN:
        tokens = [*tokens[:SHOWN], "…", *tokens[-SHOWN:]]
    text = prompt.text if len(prompt.text) <= 240 else f"{prompt.text[:120]} … {prompt.text[-120:]}"
    ends = " or ".join(_token(tokenizer, i) for i in stop_ids)
    return [
        f"first prompt: {text!r}",
        f"its {len(prompt.token_ids)} tokens: {' '.join(tokens)}; a completion ends with {ends}",
    ]


def _piece(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    return repr(tokenizer.decode([token_id], clean_up_tokenization_spaces=False))


def _token(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    return f"{token_id} {_piece(tokenizer, token_id)}"


def _lost(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    """The first characters that the tokens do not give back; blanks and Unicode's equivalent characters may change."""
    back = str(tokenizer.decode(list(prompt.token_ids), clean_up_tokenization_spaces=False))
    # Before the text stands what the tokenizer puts before any text.
    if back.endswith(prompt.text) or (back := _comparable(back)).endswith(text := _comparable(prompt.text)):
        return ""
    lost = [character for character in dict.fromkeys(text) if text.count(character) > back.count(character)]
    return "".join(lost[:5]) or text[:20]


def _comparable(text: str) -> str:
    # SentencePiece writes a blank as ▁ and drops control characters.
    return "".join(c for c in unicodedata.normalize("NFKC", text) if c.isprintable() and c not in " ▁")
