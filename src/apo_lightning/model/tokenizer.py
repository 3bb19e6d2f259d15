"""The character tokenizer of random models, tokens of a given completion, and ids of stop tokens."""

import difflib
import string
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from apo_lightning.errors import ConfigError

END_OF_TURN = "<|end|>"
START_OF_TURN = "<|turn|>"
UNKNOWN = "<|unknown|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def character_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of printable ASCII and three special tokens; any other character is one `<|unknown|>`.

    Example:
        >>> tokenizer = character_tokenizer()
        >>> tokenizer.decode(tokenizer.encode("13 + 5 =", add_special_tokens=False))
        '13 + 5 ='
        >>> len(tokenizer.encode("13 + 5 =", add_special_tokens=False))
        8
    """
    characters = sorted(string.digits + string.ascii_letters + string.punctuation + " \n")
    ids = {token: i for i, token in enumerate([UNKNOWN, START_OF_TURN, END_OF_TURN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TURN,
        additional_special_tokens=[START_OF_TURN],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def completion_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a completion, with the tokenizer's own stop token.

    Example:
        >>> completion_ids(character_tokenizer(), "")
        [2]
    """
    end = [tokenizer.eos_token_id] if isinstance(tokenizer.eos_token_id, int) else []
    return [*tokenizer.encode(text, add_special_tokens=False), *end]


def stop_token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """The id of a named stop token.

    For an unknown name `convert_tokens_to_ids` returns the unknown token or None: completions would not end as meant.

    Raises:
        ConfigError: the vocabulary has no such token.

    Example:
        >>> stop_token_id(character_tokenizer(), "<|turn|>")
        1
        >>> stop_token_id(character_tokenizer(), "<|trun|>")
        Traceback (most recent call last):
        apo_lightning.errors.ConfigError: model.stop_tokens has '<|trun|>', which is no token of the vocabulary; near \
it: '<|turn|>'
    """
    found = tokenizer.convert_tokens_to_ids(token)
    if isinstance(found, int) and (found != tokenizer.unk_token_id or token == tokenizer.unk_token):
        return found
    added: dict[str, int] = tokenizer.get_added_vocab()  # pyright: ignore[reportCallIssue, reportOptionalCall]
    special = list(dict.fromkeys([*added, *tokenizer.all_special_tokens]))
    near = difflib.get_close_matches(token, special, cutoff=0.75)
    names = ", ".join(map(repr, near or special[:10]))
    raise ConfigError(
        f"model.stop_tokens has {token!r}, which is no token of the vocabulary; "
        f"{'near it' if near else 'special ones are'}: {names}"
    )


def stop_token_ids(
    tokenizer: PreTrainedTokenizerBase, declared: int | Sequence[int] | None, named: Sequence[str]
) -> tuple[int, ...]:
    """All tokens that end a completion, ascending: the tokenizer's, those that the model declares, and named ones.

    `declared` is `eos_token_id` of a generation config.

    Example:
        >>> stop_token_ids(character_tokenizer(), [2, 5], ["<|turn|>"])
        (1, 2, 5)
    """
    ids = [tokenizer.eos_token_id, *(declared if isinstance(declared, Sequence) else [declared])]
    ids += [stop_token_id(tokenizer, token) for token in named]
    return tuple(sorted({i for i in ids if isinstance(i, int)}))
