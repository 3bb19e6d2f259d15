"""The one-line message for errors that the user can fix."""

import errno
import inspect
import traceback
from dataclasses import fields, is_dataclass

from hydra.errors import InstantiationException
from hydra.utils import get_object
from omegaconf.errors import InterpolationKeyError

from apo_lightning.errors import ConfigError, DoesNotFitError, NonfiniteError, StaleWeightsError, VerifierError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SHOWN = (ConfigError, DoesNotFitError, NonfiniteError, StaleWeightsError, VerifierError)


def user_message(error: BaseException) -> str | None:
    """One line for an error that the user can fix, or that has such a cause; None: a bug, which needs its traceback."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SHOWN):
            return str(cause)
        if isinstance(cause, InstantiationException) and (line := _misnamed(cause)) is not None:
            return line
        if isinstance(cause, InterpolationKeyError):
            # One chosen option reads a key that no other has: `reward=puzzle` reads `data.puzzle`.
            what = str(cause).splitlines()[0]
            return f"{what}: a chosen option reads it, so choose another, or one that has this key"
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            where = f" {cause.filename}" if cause.filename else ""
            return f"cannot write{where}: {cause.strerror}; make room, then continue the run with resume=auto"
        cause = cause.__cause__
    return None


def _misnamed(error: InstantiationException) -> str | None:
    """A message for a node whose `_target_` is missing or refuses its keys; None: it was called, and failed itself."""
    cause, (what, _, key) = error.__cause__, str(error).partition("\nfull_key: ")
    if isinstance(cause, ImportError) and what.startswith("Error locating target"):
        return f"{key}._target_: {' '.join(str(cause).split())}"
    if not isinstance(cause, TypeError) or not what.startswith("Error in call to target"):
        return None
    target = what.split("'")[1]
    called = get_object(target)
    module = inspect.getmodule(called)
    if any(frame.filename == getattr(module, "__file__", None) for frame in traceback.extract_tb(cause.__traceback__)):
        return None
    declared = inspect.get_annotations(called) if inspect.isclass(called) else {}
    if is_dataclass(called) and declared.keys() - {field.name for field in fields(called)}:
        return f"{key}: {cause}; write @dataclass above {target}, else what it declares is no setting"
    return f"{key}: {cause}; give what {target} takes, and nothing else"
