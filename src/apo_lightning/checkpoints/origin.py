"""What a run and the folders that it exports were made from, in sealed records; a folder's name does not say it."""

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from apo_lightning.common.console import say
from apo_lightning.common.files import write_atomically
from apo_lightning.common.identity import FORMAT, Files, Identity, difference_from, files_of, read_record, sealed
from apo_lightning.errors import ConfigError

VERSION = 1
"""The version of the format of both records."""
OF_RUN, OF_EXPORT = "identity.json", "origin.json"
"""The record in a run's folder, and in each of `EXPORTS`."""
OF_COPY = (".gitattributes", ".git/**/*", ".cache/**/*")
"""What a clone or a download of a published folder has besides its files."""
EXPORTS = ("final", "adapter")
"""The folders in a run's `checkpoints/` that the end of its training writes."""
CODE = "the code of"
"""How the name of a file of code begins in an identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`origin.json` of an exported folder."""

    step: int
    """Finished training steps."""
    weights_sha256: str
    """As `summary.json` has it: of all weights, with adapters merged."""
    identity: Identity
    """What the run read besides its settings."""
    files: Files
    """All files of the folder but this one."""


def write_run_record(run: Path, identity: Identity) -> None:
    """Write what a run reads besides its settings into its folder, whenever it is started or resumed."""
    write_atomically(run / OF_RUN, sealed({FORMAT: VERSION, "identity": identity}))


def identity_of_run(run: Path) -> Identity:
    """What the run in a folder read; raises `ConfigError` if that is not known."""
    if not (run / OF_RUN).is_file():
        raise ConfigError(f"run={run} has no {OF_RUN}: it was trained by an earlier version, with which it can be read")
    return read_record(run / OF_RUN, dict[str, dict[str, str]], VERSION)["identity"]


def write_origin(folder: Path, *, step: int, weights_sha256: str, identity: Identity) -> None:
    """Write `origin.json` into a folder that is complete otherwise."""
    origin = Origin(step=step, weights_sha256=weights_sha256, identity=identity, files=files_of(folder))
    write_atomically(folder / OF_EXPORT, sealed({FORMAT: VERSION, **asdict(origin)}))


def read_origin(folder: Path) -> Origin:
    """The origin of an exported folder, whose files are all read.

    Raises:
        ConfigError: it has none, or is not as it was written.
    """
    origin = read_record(folder / OF_EXPORT, Origin, VERSION)
    besides = [OF_EXPORT, *(str(path.relative_to(folder)) for each in OF_COPY for path in folder.glob(each))]
    if (found := difference_from(folder, origin.files, besides=besides)) is not None:
        raise ConfigError(f"{folder} is damaged: {found}")
    return origin


def read_export(folder: Path) -> Origin:
    """`read_origin` in a run's `checkpoints/`; raises `ConfigError` also where `summary.json` has other weights."""
    origin = read_origin(folder)
    summarised = origin.weights_sha256  # as where there is no summary
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        summarised = json.loads((folder.parents[1] / "summary.json").read_bytes())["weights_sha256"]
    if summarised != origin.weights_sha256:
        raise ConfigError(
            f"{folder} has not the weights that summary.json names: continue the run with resume=auto, which writes "
            "both again"
        )
    return origin


def require_unchanged(where: str, there: Identity, here: Identity) -> None:
    """Raise `ConfigError` if a content that a run began with has changed, and name it.

    A content that is not in `there` is not compared; a line names it. Code may change, since a run may be resumed to
    mend it; a line says so.
    """
    refused = []
    for name in here:
        if name not in there:
            say(f"{where} does not know {name}, which cannot be compared")
        elif there[name] != here[name] and name.startswith(CODE):
            say(f"{name} has changed since {where}: the steps from here on are those of the new code")
        elif there[name] != here[name]:
            refused.append(name)
    if refused:
        raise ConfigError(
            f"{where}: {' and '.join(refused)} changed after its run began, under the same settings: restore what was "
            "changed, or start a new run"
        )
