"""The one-line message for errors that the user can fix."""

import difflib
import errno
import inspect
import sys
import traceback
from dataclasses import is_dataclass
from pathlib import Path

import hydra
from hydra.errors import InstantiationException
from hydra.utils import get_object
from omegaconf.errors import InterpolationKeyError

from apo_lightning.errors import ConfigError, NonfiniteError, StaleWeightsError, VerifierError, in_brief

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SHOWN = (ConfigError, NonfiniteError, StaleWeightsError, VerifierError)
SMALLER = "give a smaller tokens_per_microbatch, or model.gradient_checkpointing=true"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or a CPU; torch is not imported for it."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"OutOfMemoryError", "MemoryError"}) or "can't allocate memory" in str(error)


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
            group, dot, _ = what.split("'")[1].partition(".")
            if not dot:
                return f"{what}: a configuration names it in ${{…}}, and no setting has that name"
            return f"{what}: an option reads it that the chosen {group}= does not go with; choose another of the two"
        if is_out_of_memory(cause):
            return f"out of memory: {str(cause).partition('. ')[0]}; {SMALLER}, then continue the run with resume=auto"
        if isinstance(cause, OSError) and cause.errno in NO_SPACE:
            where = f" {cause.filename}" if cause.filename else ""
            return f"cannot write{where}: {cause.strerror}; make room, then continue the run with resume=auto"
        cause = cause.__cause__
    return None


def _misnamed(error: InstantiationException) -> str | None:
    """A message for a node whose `_target_` is missing or refuses its keys; None: it was called, and failed itself."""
    cause, (what, _, key) = error.__cause__, str(error).partition("\nfull_key: ")
    if isinstance(cause, ImportError) and what.startswith("Error locating target"):
        target = what.split("'")[1]
        return f"{key}._target_: {_not_found(target, cause)}"
    if what.startswith("Expected a callable target"):
        return f"{key}._target_ is no class or function: give the dotted name of one"
    if not isinstance(cause, TypeError) or not what.startswith("Error in call to target"):
        return None
    target = what.split("'")[1]
    called = get_object(target)
    module = inspect.getmodule(called)
    if any(frame.filename == getattr(module, "__file__", None) for frame in traceback.extract_tb(cause.__traceback__)):
        return None
    # `is_dataclass` holds for a subclass of one, whose own fields are none without the decorator.
    if is_dataclass(called) and "__dataclass_fields__" not in vars(called):
        return f"{key}: {cause}; write @dataclass above {target}, else what it declares is no setting"
    own = "if your file names another class, write _self_ last in its defaults"
    return f"{key}: {cause}; give what {target} takes, and nothing else, or, {own}"


def _not_found(target: str, error: ImportError) -> str:
    """Why a dotted name is no class or function: no such module, no such name in it, or the import fails."""
    root = error.__cause__ or error
    if not isinstance(root, ModuleNotFoundError) or root.name is None or not f"{target}.".startswith(f"{root.name}."):
        frame = traceback.extract_tb(root.__traceback__)[-1]
        if Path(frame.filename).is_relative_to(Path(hydra.__file__).parent):
            return f"{target}: {in_brief(root)}"
        what, file, line = in_brief(root), frame.filename, frame.lineno
        if isinstance(root, SyntaxError):
            what, file, line = root.msg, root.filename, root.lineno
        return f"the import of {target} fails: {type(root).__name__}: {what} ({file}:{line})"
    if "." not in root.name:
        remedy = "start where it lies, or name its folder in PYTHONPATH"
        return f"there is no module {root.name} in {Path.cwd()} or on PYTHONPATH: {remedy}"
    parent, _, name = root.name.rpartition(".")
    public = [known for known in vars(sys.modules[parent]) if not known.startswith("_")]
    near = difflib.get_close_matches(name, public, 1)
    return f"{parent} has no {name}{f': the nearest is {near[0]}' if near else ''}"
