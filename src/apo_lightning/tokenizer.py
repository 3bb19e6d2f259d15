"""The tokenizer of random models: one token a character, so that a tiny model needs no file and no hub."""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TURN = "<|end|>"
START_OF_TURN = "<|turn|>"
UNKNOWN = "<|unknown|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    + START_OF_TURN
    + "{{ message['role'] }}\n{{ message['content'] }}"
    + END_OF_TURN
    + "{% endfor %}{% if add_generation_prompt %}"
    + START_OF_TURN
    + "assistant\n{% endif %}"
)


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Printable ASCII and three special tokens; anything else is one `<|unknown|>` a character.

    Example:
        >>> tokenizer = character_tokenizer()
        >>> tokenizer.decode(tokenizer.encode("13 + 5 =", add_special_tokens=False))
        '13 + 5 ='
        >>> len(tokenizer.encode("13 + 5 =", add_special_tokens=False))
        8
    """
    characters = [
        UNKNOWN,
        START_OF_TURN,
        END_OF_TURN,
        *sorted(string.digits + string.ascii_letters + string.punctuation + " \n"),
    ]
    tokenizer = Tokenizer(models.WordLevel({character: i for i, character in enumerate(characters)}, unk_token=UNKNOWN))
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
