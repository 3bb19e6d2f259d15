"""The project's exceptions: what each says went wrong, and `ConfigError` for what the user can mend."""

import inspect
import re
import textwrap
import traceback
from typing import Any


def in_brief(error: BaseException) -> str:
    r"""What a library says of its error, as part of one line: at most 200 characters, cut between words.

    Example:
        >>> in_brief(OSError("no such\n file"))
        'no such file'
    """
    return textwrap.shorten(str(error), 200, placeholder=" …")


def system_error(error: BaseException) -> int:
    """The system's number of an error, also of one from Rust (safetensors, tokenizers), which has it in its text; 0."""
    if isinstance(error, OSError):
        return error.errno or 0
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else 0


def failure(error: BaseException, code: Any) -> str:
    """What a user's code raised, and the line of that code which did, or which called what did.

    Args:
        error: that was raised, with its traceback.
        code: the function, or an object of the class, that was called.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = getattr(inspect.getmodule(getattr(code, "func", code)) or inspect.getmodule(type(code)), "__file__", None)
    place = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    where = f" ({place.filename}:{place.lineno})" if place is not None else ""
    return f"{type(error).__name__}: {in_brief(error)}{where}"


class ConfigError(ValueError):
    """A setting, a file or an environment that cannot work, found before any expensive work.

    The message is one line that names the offending value and the remedy; the scripts print it without a traceback
    and exit with status 1.

    Example:
        >>> raise ConfigError("group_size is 1: a group-normalised advantage needs at least 2")
        Traceback (most recent call last):
        apo_lightning.errors.ConfigError: group_size is 1: a group-normalised advantage needs at least 2
    """


class StaleWeightsError(RuntimeError):
    """The engine samples from weights that are not the policy's."""


class NonfiniteError(RuntimeError):
    """Loss or gradient was not finite several optimizer steps in a row."""


class VerifierError(RuntimeError):
    """Too many answers could not be judged for the rewards of this step to mean anything."""


class Preempted(BaseException):
    """The run was asked to stop, and was saved where it can go on. A reward's own `except Exception` lets it pass."""

    STATUS = 75
    """Exit status of the first rank: EX_TEMPFAIL, "try again later"."""
