"""Problem → prompt text and token ids, through a chat template or a base-model template."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from apo_lightning.data.chat_format import REMEDY, ChatFormat, Message
from apo_lightning.data.rows import HALF_CHARACTER, Row
from apo_lightning.errors import ConfigError
from apo_lightning.types import Prompt

PLACEHOLDER = "{problem}"
_LATEX = "abla|eg|eq?|ewline|exists|earrow|warrow|i|mid|ot|otin|u|leq|geq|less|gtr|sim|cong|parallel|subseteq|onumber"
TYPED_BREAK = re.compile(rf"\\n(?!(?:{_LATEX})(?![a-z]))|\\[rt](?![a-z])")
"""What is left of a line break or tab inside a quoted override; `\n` may begin a command of LaTeX."""


@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    r"""The text around a problem.

    Attributes:
        instruction: the user's turn, with `{problem}` in it, e.g. `{problem}\nPut your final answer in \boxed{}.`
        system: the system message. None: none is passed, and the chat template may add its own.
        base_template: for base models, which have no chat template: the whole text, with `{problem}` where the
            instruction goes. None: the tokenizer's chat template.

    Raises:
        ConfigError: a template without `{problem}`, a system message that a base template has no place for, or a
            backslash and an n where a line break is meant.
    """

    instruction: str = PLACEHOLDER
    system: str | None = None
    base_template: str | None = None

    def __post_init__(self) -> None:
        for name, text in (
            ("instruction", self.instruction),
            ("system", self.system),
            ("prompt_template", self.base_template),
        ):
            if typed := TYPED_BREAK.search(text or ""):
                raise ConfigError(
                    f"{name} {text!r} has {typed[0]} as two characters, a backslash and a letter: for a line break "
                    f"write $'…{name}=\"…\\n…\"' on the command line, or double quotes in a YAML file"
                )
            if name != "system" and text is not None and PLACEHOLDER not in text:
                raise ConfigError(f"{name} {text!r} has no {PLACEHOLDER}: say where the problem goes")
        if self.base_template is not None and self.system is not None:
            raise ConfigError(
                f"system is {self.system!r}, but the model's prompt_template has no place for it: "
                "write it into the template, or set data.system=null"
            )

    def user_turn(self, problem: str) -> str:
        """The instruction with the problem in it. Braces of LaTeX stay as they are."""
        return self.instruction.replace(PLACEHOLDER, problem)


def build_prompts(
    rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, template: PromptTemplate, *, source: str
) -> list[Prompt]:
    """The prompts of rows: the template around each problem, then the prefill.

    A chat template writes its special tokens itself, so none are added; a base template gets the tokens that the
    tokenizer puts before any text, as in pre-training.

    Raises:
        ConfigError: neither the model's config nor the tokenizer has a template, or what stands in a prompt is not the
            row's problem and system message, whole and unchanged.
    """
    if template.base_template is None and tokenizer.chat_template is None:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template: give the model a prompt_template "
            f"with {PLACEHOLDER} in it"
        )
    conversations = [_conversation(row, template) for row in rows]
    chat = None
    if template.base_template is None:
        chat = ChatFormat.of(tokenizer, next(([*each[:-1]] for each in conversations if len(each) > 1), ()))
    prompts = []
    for row, messages in zip(rows, conversations, strict=True):
        text = _rendered(row, messages, template, chat)
        prompts.append(
            Prompt(
                id=row.id,
                problem=row.problem,
                answer=row.answer,
                text=text,
                token_ids=tuple(tokenizer.encode(text, add_special_tokens=chat is None)),
                prefill=row.prefill,
                source=source,
                messages=None if chat is None else tuple(messages),
                columns=row.columns,
            )
        )
    return prompts


def build_prompt(row: Row, tokenizer: PreTrainedTokenizerBase, template: PromptTemplate, *, source: str) -> Prompt:
    """The prompt of one row; see `build_prompts`."""
    return build_prompts([row], tokenizer, template, source=source)[0]


def require_fitting(prompts: Sequence[Prompt], max_prompt_tokens: int) -> None:
    """Raise `ConfigError` for a benchmark's prompt that is too long: without it, it would be another benchmark."""
    for prompt in prompts:
        if len(prompt.token_ids) > max_prompt_tokens:
            raise ConfigError(
                f"benchmark {prompt.source}, problem '{prompt.id}' has {len(prompt.token_ids)} prompt tokens, above "
                f"{max_prompt_tokens}: raise max_prompt_tokens, or take the problem out of the benchmark"
            )


def _conversation(row: Row, template: PromptTemplate) -> list[Message]:
    """The messages of a prompt; raises `ConfigError` where a system message of the row's has no place."""
    system = template.system if row.system is None else row.system
    if row.system is not None and (template.base_template is not None or template.system not in (None, row.system)):
        taken = "data.system" if template.base_template is None else "model.prompt_template"
        raise ConfigError(
            f"problem '{row.id}' brings a system message, for which {taken} leaves no place: set {taken}=null"
        )
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*messages, {"role": "user", "content": template.user_turn(row.problem)}]


def _rendered(row: Row, messages: Sequence[Message], template: PromptTemplate, chat: ChatFormat | None) -> str:
    """The text of a prompt; raises `ConfigError` unless every message stands in it as it is, up to blanks around it."""
    if chat is None:
        assert template.base_template is not None
        text = template.base_template.replace(PLACEHOLDER, messages[-1]["content"])
    else:
        text = chat.render(messages)
        for message in messages:
            if message["content"].strip() not in text:
                of_system = "write it into data.instruction and set data.system=null, or "
                raise ConfigError(
                    f"{chat.name} leaves out or changes the {message['role']} message of problem '{row.id}': "
                    f"{of_system if message['role'] == 'system' else ''}{REMEDY}"
                )
    text += row.prefill
    if half := HALF_CHARACTER.search(text):
        raise ConfigError(f"the prompt of problem '{row.id}' has {half[0]!r}, half of a character: correct the problem")
    return text
