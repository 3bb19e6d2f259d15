"""What a tokenizer's chat template does with a conversation, found out on a probe before any prompt is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from transformers import PreTrainedTokenizerBase

from apo_lightning.errors import ConfigError, in_brief

TODAY = date(2024, 7, 26)
"""For templates that write today's date (Llama 3.2, SmolLM3, Granite): a run would differ from day to day."""
QUESTION, ANSWER, FOLLOW_UP = "What is Ten plus 3?", "It is Thirteen.", "And minus 3?"
REMEDY = "give the model a prompt_template with {problem} in it, which takes its place"

Message = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ChatFormat:
    """A tokenizer's chat template, and how it takes the text of a message."""

    tokenizer: PreTrainedTokenizerBase
    system: tuple[Message, ...] = ()
    """The system message of the probe, if the prompts have one."""
    reads_parts: bool = False
    """It reads `[{"type": "text", "text": …}]`, as templates of multimodal models do, and leaves plain text out."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, system: Sequence[Message] = ()) -> "ChatFormat":
        """Find how the template takes text.

        Raises:
            ConfigError: it cannot be rendered, leaves out or changes the user's message, or does not open the
                assistant's turn. Templates such as Mistral's do that without being asked.
        """
        plain, parts = (cls(tokenizer=tokenizer, system=tuple(system), reads_parts=each) for each in (False, True))
        text, failure = plain.attempt(QUESTION)
        found, opened = plain, text.rpartition(QUESTION)[2].strip()
        if QUESTION not in text:
            text_of_parts, _ = parts.attempt(QUESTION)
            # Python's own way of printing a part means that the template has not read it.
            if QUESTION not in text_of_parts or "'type': 'text'" in text_of_parts:
                raise failure or ConfigError(
                    f"{plain.name} leaves out or changes the user's message ({QUESTION!r} becomes {text!r:.80}): "
                    f"{REMEDY}"
                )
            found, opened = parts, text_of_parts.rpartition(QUESTION)[2].strip()
        unopened, _ = found.attempt(QUESTION, opens=False)
        before, last, between = found.around_answer()
        # Behind a last answer too stands what a template writes without being asked.
        is_open = opened == before.strip() or not between.startswith(last.strip())
        if unopened.rpartition(QUESTION)[2].strip() == opened and not is_open:
            raise ConfigError(
                f"{plain.name} does not open the assistant's turn (add_generation_prompt changes nothing), so that "
                f"completions would go on with the user's message: {REMEDY}"
            )
        return found

    @property
    def name(self) -> str:
        """The subject of an error message."""
        return f"the chat template of tokenizer {self.tokenizer.name_or_path!r}"

    def render(self, messages: Sequence[Message], *, opens: bool = True) -> str:
        """The text of a conversation, behind which the assistant's turn is opened; raises `ConfigError` if it fails."""
        given: list[Any] = [dict(message) for message in messages]
        if self.reads_parts:
            given = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in given]
        clock = {"date_string": TODAY.strftime("%d %b %Y"), "strftime_now": TODAY.strftime}
        try:
            return str(self.tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=opens, **clock))
        except Exception as error:  # a template is a program of the model's author
            of_system = "set data.system=null, or " if messages[0]["role"] == "system" else ""
            raise ConfigError(
                f"tokenizer {self.tokenizer.name_or_path!r} has a chat template that cannot be rendered "
                f"({in_brief(error)}): {of_system}{REMEDY}"
            ) from error

    def around_answer(self) -> tuple[str, str, str]:
        """What stands before an answer, after a last one, and between one and the next message; empty if none does."""
        alone, _ = self.attempt(QUESTION, ANSWER, opens=False)
        followed, _ = self.attempt(QUESTION, ANSWER, FOLLOW_UP, opens=False)
        before, after = alone.rpartition(ANSWER)[0].rpartition(QUESTION)[2], alone.partition(ANSWER)[2]
        return before, after, followed.partition(ANSWER)[2].partition(FOLLOW_UP)[0]

    def attempt(self, *turns: str, opens: bool = True) -> tuple[str, ConfigError | None]:
        """The text of a conversation that the user begins, or why there is none."""
        roles = ("user", "assistant", "user")
        messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
        try:
            return self.render([*self.system, *messages], opens=opens), None
        except ConfigError as error:
            return "", error
