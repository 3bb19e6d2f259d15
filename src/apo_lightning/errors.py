"""The project's exceptions: what each says went wrong, and `ConfigError` for what the user can mend."""

import textwrap


def in_brief(error: BaseException) -> str:
    r"""What a library says of its error, as part of one line: at most 200 characters, cut between words.

    Example:
        >>> in_brief(OSError("no such\n file"))
        'no such file'
    """
    return textwrap.shorten(str(error), 200, placeholder=" …")


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
