"""Problem → prompt text and token ids, through a chat template or a base-model template."""

from dataclasses import dataclass
from typing import cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from apo_lightning.data.rows import Row
from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.types import Prompt

PLACEHOLDER = "{problem}"
TEMPLATE_DATE = "26 Jul 2024"
"""Llama-3.2's chat template writes today's date by default: the same run would differ from day to day."""


@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    r"""The text around a problem.

    Attributes:
        instruction: the user's turn, with `{problem}` in it, e.g. `{problem}\nPut your final answer in \boxed{}.`
        system: the system message. None: none is passed, and the chat template may add its own.
        base_template: for base models, which have no chat template: the whole text, with `{problem}` where the
            instruction goes. None: the tokenizer's chat template.

    Raises:
        ConfigError: a template without `{problem}`, or a system message that a base template has no place for.
    """

    instruction: str = PLACEHOLDER
    system: str | None = None
    base_template: str | None = None

    def __post_init__(self) -> None:
        if PLACEHOLDER not in self.instruction:
            raise ConfigError(f"instruction {self.instruction!r} has no {PLACEHOLDER}: say where the problem goes")
        if self.base_template is not None and PLACEHOLDER not in self.base_template:
            raise ConfigError(
                f"prompt_template {self.base_template!r} has no {PLACEHOLDER}: say where the problem goes"
            )
        if self.base_template is not None and self.system is not None:
            raise ConfigError(
                f"system is {self.system!r}, but the model's prompt_template has no place for it: "
                "write it into the template, or set data.system=null"
            )

    def user_turn(self, problem: str) -> str:
        """The instruction with the problem in it. Braces of LaTeX stay as they are."""
        return self.instruction.replace(PLACEHOLDER, problem)


def build_prompt(row: Row, tokenizer: PreTrainedTokenizerBase, template: PromptTemplate, *, source: str) -> Prompt:
    """The prompt: the template around the problem, then the prefill.

    A chat template writes its special tokens itself, so none are added; a base template gets the tokens that the
    tokenizer puts before any text, as in pre-training.

    Raises:
        ConfigError: neither the model's config nor the tokenizer has a template, or the tokenizer's fails.
    """
    messages = None
    if template.base_template is not None:
        text = template.base_template.replace(PLACEHOLDER, template.user_turn(row.problem)) + row.prefill
    elif tokenizer.chat_template is None:
        raise ConfigError(
            f"tokenizer {tokenizer.name_or_path!r} has no chat template: give the model a prompt_template "
            f"with {PLACEHOLDER} in it"
        )
    else:
        messages = [] if template.system is None else [{"role": "system", "content": template.system}]
        messages.append({"role": "user", "content": template.user_turn(row.problem)})
        try:
            turn = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, date_string=TEMPLATE_DATE
            )
        except (TemplateError, OverflowError) as error:
            raise ConfigError(
                f"tokenizer {tokenizer.name_or_path!r} has a chat template that cannot be rendered "
                f"({in_brief(error)}): give the model a prompt_template with {PLACEHOLDER} in it"
            ) from error
        text = cast(str, turn) + row.prefill
    token_ids = tokenizer.encode(text, add_special_tokens=template.base_template is not None)
    return Prompt(
        id=row.id,
        problem=row.problem,
        answer=row.answer,
        text=text,
        token_ids=tuple(token_ids),
        prefill=row.prefill,
        source=source,
        messages=None if messages is None else tuple(messages),
        columns=row.columns,
    )
