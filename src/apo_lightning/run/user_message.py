"""The one-line message for errors that the user can fix."""

import difflib
import errno
import inspect
import logging
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from hydra.utils import get_object
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from apo_lightning.errors import ConfigError, NonfiniteError, StaleWeightsError, VerifierError, in_brief, system_error
from apo_lightning.run.choices import composed, nearest, options_of
from apo_lightning.run.lightning_options import added

SHOWN = (ConfigError, NonfiniteError, StaleWeightsError, VerifierError)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REMEDIES = dict.fromkeys(NO_SPACE, "make room") | dict.fromkeys(
    (errno.EROFS, errno.EACCES, errno.EPERM), "give this user the right to, or choose another folder"
)
LOST_PEER = ("gloo/transport", "Connection closed by peer", "ncclRemoteError")
"""What torch says of a collective whose other end is gone."""
OURS = [Path(__file__).resolve().parents[2] / f"apo_{end}" for end in ("lightning", "methods", "report", "lab", "plan")]
LIBRARIES = {Path(path) for path in (*sysconfig.get_paths().values(), *site.getsitepackages())} - {Path(sys.prefix)}
OWN = {
    "model": "an option of model= has the settings, and the weights are given apart: model=llama3b model.path={} "
    "model.name={}",
    "data": "an option of data= has the settings, and the file is given apart: data=gsm8k data.path={} data.name={}",
    "reward": "give reward=callable reward.function._target_={}",
}
"""By group, what does what a path, a hub id or a dotted name in place of an option is meant to do."""


def user_message(error: BaseException) -> str | None:
    """One line for an error that the user can fix, or that has such a cause; None: a bug, which needs its traceback."""
    failed: str | None = None
    root, cause = error, error
    while cause is not None:
        if (line := _line_of(cause)) is not None:
            return line
        failed = failed or _failed_call(cause)
        root, cause = cause, cause.__cause__
    if logging.getLogger().handlers:
        logging.getLogger("own_code").error("%s", root, exc_info=root)
    if (frame := own_frame(root)) is None:
        return failed
    what = f"{type(root).__name__}: {in_brief(root)}"
    return f"{frame.filename}:{frame.lineno}, in {frame.name}: {what} (its traceback is in run.log)"


def is_ours(file: Path) -> bool:
    """Whether a file belongs to one of this project's packages."""
    return any(file.is_relative_to(package) for package in OURS)


def own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Where a user's callback, part or loss has raised an error, whose traceback is for the run's log; or None."""
    while error.__cause__ is not None:
        error = error.__cause__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if is_ours(file):
            return None
        if file.is_file() and not any(file.is_relative_to(library) for library in LIBRARIES):
            return frame
    return None


def _line_of(error: BaseException) -> str | None:
    names = {kind.__name__ for kind in type(error).__mro__}  # torch is not imported for its errors
    text = str(error)
    if isinstance(error, SHOWN):
        return text
    if isinstance(error, MarkedYAMLError):
        return f"{error.problem_mark and f'{error.problem_mark.name}:{error.problem_mark.line + 1}: '}{error.problem}"
    if isinstance(error, InstantiationException):
        return _misnamed(error)
    if isinstance(error, InterpolationKeyError) and "." in (key := text.split("'")[1]):
        group = key.partition(".")[0]
        return f"{key}: the chosen {group}= has no such key, and another option reads it; choose another of the two"
    if isinstance(error, OverrideParseException):
        key, is_setting, value = error.override.partition("=")
        if not is_setting:
            return f"{key}: a setting is typed with =, {key}=VALUE"
        return f"{key}: Hydra cannot read the value {value}: put it in two pairs of quotes, '{key}=\"…\"'"
    if isinstance(error, HydraException | OmegaConfBaseException):
        return _not_composed(error)
    if names & {"OutOfMemoryError", "MemoryError"} or "can't allocate memory" in text:
        smaller = "give a smaller tokens_per_microbatch, or model.gradient_checkpointing=true"
        return f"out of memory: {text.partition('. ')[0]}; {smaller}, then continue the run with resume=auto"
    if "MisconfigurationException" in names or text.startswith("Early stopping conditioned on metric"):
        return re.sub(r"\s+", " ", text)
    if system_error(error) in REMEDIES:
        return _failed_call(error)
    if "SafetensorError" in names:
        return f"a file of weights cannot be read: {in_brief(error)}"
    if isinstance(error, RuntimeError) and any(words in text for words in LOST_PEER):
        return (
            "another rank of this run has ended: read its own error; if it has none, it was killed, perhaps by the "
            "kernel of a machine without memory (see dmesg)"
        )
    return None


def _failed_call(error: BaseException) -> str | None:
    """What the system has refused; None: the error is none of the system."""
    if not (number := system_error(error)):
        return None
    unnamed = "a connection" if isinstance(error, ConnectionError | TimeoutError) else "a file of the run"
    where = getattr(error, "filename", None) or unnamed
    what = "write" if number in (*NO_SPACE, errno.EROFS) else "read or write"
    remedy = REMEDIES.get(number, "mend that")
    return f"cannot {what} {where}: {os.strerror(number)}; {remedy}, then continue the run with resume=auto"


def _misnamed(error: InstantiationException) -> str | None:
    """A message for a `_target_` that cannot be imported or refuses its keys; None: its own code failed."""
    cause, (what, _, key) = error.__cause__, str(error).partition("\nfull_key: ")
    if what.startswith("Error locating target"):
        target, reason = what.split("'")[1], cause or error
        return f"{key}._target_ is {target}: {_missing_in(target, reason.__cause__ or reason)}"
    if isinstance(cause, ModuleNotFoundError) or (key == "trainer" and isinstance(cause, ValueError)):
        return re.sub(r"\s+", " ", f"{key}: {cause}")
    if not isinstance(cause, TypeError) or not what.startswith("Error in call to target"):
        return None if what.startswith("Error in call") else f"{key}: {what}"
    target = what.split("'")[1]
    own_file = getattr(inspect.getmodule(get_object(target)), "__file__", None)
    if any(frame.filename == own_file for frame in traceback.extract_tb(cause.__traceback__)):
        return None
    return (
        f"{key}: {cause}; give what {target} takes, and nothing else. Is _self_ last in the defaults of your file, and "
        "@dataclass above a class of yours that declares fields?"
    )


def _missing_in(target: str, error: BaseException) -> str:
    """Why a dotted name leads to no object, by the error of its import or of its last part."""
    if not isinstance(error, ModuleNotFoundError) or not f"{target}.".startswith(f"{error.name}."):
        return f"{type(error).__name__}: {in_brief(error)}"  # of an import inside the module
    module, _, missing = str(error.name).rpartition(".")
    if not module:
        return f"there is no module {missing} in the working directory or an installed package"
    return f"{getattr(sys.modules[module], '__file__', None) or module} has no {missing}"


def _not_composed(error: Exception) -> str:
    """Hydra's or OmegaConf's message on a wrong override, in one line; a missing option with the nearest ones."""
    if isinstance(error, MissingConfigException) and (name := error.missing_cfg_file):
        group, _, option = name.partition("/")
        if group in OWN and re.search(r"[./]", option):
            own = Path(option).name.removesuffix(".jsonl").removesuffix(".parquet")
            return f"{group}={option}: {OWN[group].format(option, re.sub(chr(92) + 'W', '_', own))}"
        if options := options_of(group):
            near = difflib.get_close_matches(option, options) or [
                each for each in options if difflib.get_close_matches(option, [each.rpartition("/")[2]])
            ]
            choice = f"{group}={f' or {group}='.join(near)}" if near else f"one of {', '.join(options)}"
            return (
                f"there is no configs/{name}.yaml here ({Path.cwd()}) or in the framework: choose {choice}, or, if it "
                "lies elsewhere, name the folder of its configs with -cd FOLDER, and that of its code in PYTHONPATH"
            )
    if found := re.match(r"Could not append to config. An item is already at '([^']+)'", str(error)):
        return f"+{found[1]}: this key has a value already: write it without the +"
    parts = [str(error).removeprefix(f"{ConfigError.__name__} raised while resolving interpolation: ")]
    parts[0] = parts[0].split("Config search path")[0]
    if error.__cause__ is not None:
        parts.append(str(error.__cause__))
    return re.sub(r"\s+", " ", " ".join(parts).split("full_key")[0]).strip()


def misspelt(error: Exception, config: str, overrides: Sequence[str]) -> str | None:
    """One line with the nearest key, for a key that does not exist; None: it is another error."""
    found = re.match("Could not override '([^']+)'", str(error)) if isinstance(error, HydraException) else None
    if found is None:
        return None
    if (line := added(found[1])) is not None:
        return line
    choices = [word.split(",")[0] for word in overrides if options_of(word.partition("=")[0])]
    return f"{found[1]}: no setting has this name{nearest(found[1], composed(config, choices))}"
