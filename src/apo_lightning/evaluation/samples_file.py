"""`samples.jsonl`: appended one batch at a time, and resumable after a kill."""

import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from apo_lightning.common.files import take_lock, to_json, write_atomically
from apo_lightning.common.formatting import flatten
from apo_lightning.common.identity import FORMAT, SEAL, read_sealed, sealed, sha256_of_plain
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import Sample
from apo_lightning.types import Prompt

SAMPLES, IDENTITY = "samples.jsonl", "evaluation.json"
VERSION = 2
"""The version of the format of both files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSample:
    """A sample to draw, independent of rank and time."""

    prompt: Prompt
    sample: int
    seed: int


class SamplesFile:
    """The samples of one evaluation, in the order of its plan.

    `evaluation.json` in the same folder holds `identity`, everything that determines samples and verdicts, as plain
    data. It and each sample hold their own hash. The same evaluation continues after the last whole batch of the file:
    an engine computes a batch of `samples_per_batch` together, so a resumed file has the same bytes as an uninterrupted
    one. Another evaluation is refused.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, Any], plan: Sequence[PlannedSample], samples_per_batch: int
    ) -> None:
        self.path = folder / SAMPLES
        self.identity = identity
        self.plan = plan
        self.samples_per_batch = samples_per_batch
        self._file: IO[bytes] | None = None

    def open(self) -> int:
        """Lock the file, cut off an incomplete last batch and return the number of samples that remain.

        Raises:
            ConfigError: the folder has another evaluation, or another process is writing to it.
        """
        self._file = self.path.open("ab+")
        take_lock(
            self._file.fileno(), f"another process is writing {self.path}: wait for it, or choose another output_dir"
        )
        require_same_identity(self.path.parent, self.identity)
        identity_path = self.path.with_name(IDENTITY)
        if not identity_path.exists() and self.path.stat().st_size > 0:
            raise ConfigError(f"{self.path} exists without its {IDENTITY}: choose another output_dir, or remove it")
        write_atomically(identity_path, sealed({FORMAT: VERSION, **self.identity}))
        num_good, end = self._whole_batches()
        self._file.truncate(end)
        return num_good

    def append(self, samples: Sequence[Sample]) -> None:
        """Write one batch and sync it to disk."""
        assert self._file is not None
        self._file.write(b"".join(sealed(asdict(sample), indent=None) for sample in samples))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, so that another process may write it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _whole_batches(self) -> tuple[int, int]:
        """(samples, bytes) up to the end of the last whole batch."""
        assert self._file is not None
        self._file.seek(0)
        ends = [0]
        for number, (planned, line) in enumerate(zip(self.plan, self._file, strict=False), start=1):
            sample = parse_sample(line, f"{self.path}:{number}")
            if sample is None:
                break
            if (sample.prompt_id, sample.sample, sample.seed) != (planned.prompt.id, planned.sample, planned.seed):
                raise ConfigError(
                    f"{self.path} holds sample {sample.sample} of '{sample.prompt_id}' where sample {planned.sample} "
                    f"of '{planned.prompt.id}' belongs: it was edited; remove it to start over"
                )
            ends.append(ends[-1] + len(line))
        num_good = len(ends) - 1
        if num_good < len(self.plan):
            num_good -= num_good % self.samples_per_batch
        return num_good, ends[num_good]


def require_same_identity(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a folder with samples whose `evaluation.json` is damaged or differs in a key of it."""
    path, samples = folder / IDENTITY, folder / SAMPLES
    if not path.exists() or not samples.exists() or samples.stat().st_size == 0:
        return
    try:
        found = read_sealed(path, VERSION)
    except ConfigError as error:
        raise ConfigError(f"{error}. Choose another output_dir, or remove that folder") from error
    there, here = flatten({key: found.get(key) for key in identity}), flatten(json.loads(to_json(identity)))
    for key in {**there, **here}:
        was, is_now = there.get(key, "null"), here.get(key, "null")
        if was != is_now:
            raise ConfigError(
                f"{folder} holds another evaluation: {key} is {textwrap.shorten(was, 80)} there and "
                f"{textwrap.shorten(is_now, 80)} here. Choose another output_dir, or remove that folder"
            )


def read_samples(path: Path) -> list[Sample]:
    """Every sample of a finished file; raises `ConfigError` if a line is not a sample."""
    samples = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if (sample := parse_sample(line, f"{path}:{number}")) is None:
                raise ConfigError(f"{path}:{number} is not a whole sample: evaluate again to complete the file")
            samples.append(sample)
    return samples


def parse_sample(line: bytes, where: str) -> Sample | None:
    """The sample in a line; None for an incomplete line or another record.

    Raises:
        ConfigError: the line is whole, and is not as it was written.
    """
    try:
        record = json.loads(line) if line.endswith(b"\n") else {}
        seal = record.pop(SEAL)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    if seal != sha256_of_plain(record):
        raise ConfigError(f"{where}: the sample has changed since it was written: remove the file to sample again")
    return Sample(**record)
