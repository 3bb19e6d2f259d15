"""Sources of problems: training rows, held-out rows, and counts of dropped rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, runtime_checkable

from apo_lightning.common.hashing import hash64
from apo_lightning.common.ranges import Checked, Count, Within
from apo_lightning.data.files import HubDataset, ProblemSet
from apo_lightning.data.filtering import FilterReport, filter_rows, normalised_problem
from apo_lightning.data.rows import Row, require_answers
from apo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """The training and held-out problems of a source, after filtering."""

    train: list[Row]
    validation: dict[str, list[Row]]
    """Held-out problems by benchmark name; never filtered."""
    report: FilterReport
    """Counts of the training rows that were read, dropped and kept."""


@runtime_checkable
class ProblemSource(Protocol):
    """A task: its problems, their prompt and its sampling limits, as the attributes of `DatasetSource`."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def instruction(self) -> str: ...  # noqa: D102
    @property
    def system(self) -> str | None: ...  # noqa: D102
    @property
    def max_prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def max_completion_tokens(self) -> int: ...  # noqa: D102

    def check(self) -> None:
        """Check the configuration without reading everything; raises `ConfigError`."""

    def load(self) -> Problems:
        """Read, filter and split."""
        ...


@dataclass(frozen=True, kw_only=True)
class DatasetSource(Checked):
    """Problems of a local file or a hub data set.

    Attributes:
        name: name of the data set and of its held-out part.
        path: a local `.jsonl` or `.parquet` file or a folder of them, with `problem` and `answer`, or in the data set's
            own layout; takes precedence over `hub`.
        hub: the hub data set, read if there is no path.
        num_validation: number of training problems held out, chosen by a hash of their text alone.
        validation: benchmarks to validate on, by name: each the path of a local file or a `ProblemSet`. The default is
            None, as Hydra's command line cannot add to an empty mapping.
        near_copies: whether problems that differ in case, white space and spacing commands of LaTeX alone are copies of
            one, of which the first is kept. False: only equal ones are.
        exclude: benchmarks whose problems are removed from the training set: paths or `ProblemSet`s.
        instruction, system: as in `PromptTemplate`.
        max_prompt_tokens: longer training prompts are dropped and counted.
        max_completion_tokens: a completion is cut at this length.

    Raises:
        ConfigError: a limit is not positive, or a benchmark has the data set's own name.
    """

    name: str
    path: str | None = None
    hub: HubDataset | None = None
    num_validation: Annotated[int, Within("[0, inf)")] = 0
    validation: Mapping[str, ProblemSet | str] | None = None
    near_copies: bool = False
    exclude: Sequence[ProblemSet | str] = ()
    instruction: str = "{problem}"
    system: str | None = None
    max_prompt_tokens: Count = 512
    max_completion_tokens: Count = 1536

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_validation and self.name in (self.validation or {}):
            raise ConfigError(
                f"validation has a benchmark '{self.name}' and num_validation={self.num_validation} makes another of "
                "that name: rename it, or set num_validation=0"
            )

    def check(self) -> None:
        """Check that every local file exists and its first record can be read; raises `ConfigError`."""
        ProblemSet(path=self.path, hub=self.hub).check()
        for benchmark in (*(self.validation or {}).values(), *self.exclude):
            _problem_set(benchmark).check()

    def load(self) -> Problems:
        """Read, filter and split.

        Raises:
            ConfigError: a file or hub data set cannot be read, a row is malformed, or no row is left to train on.
        """
        validation = {name: _problem_set(each).rows(name) for name, each in (self.validation or {}).items()}
        for name, rows in validation.items():
            require_answers(rows, f"benchmark {name}")
        excluded = [row for benchmark in self.exclude for row in _problem_set(benchmark).rows("exclude")]
        own = ProblemSet(path=self.path, hub=self.hub)
        rows, report = filter_rows(own.rows(self.name), excluded, near_copies=self.near_copies)
        if len(rows) <= self.num_validation:
            raise ConfigError(
                f"nothing is left to train on: {self.name} has {len(rows)} problems ("
                f"{str(report).partition('; ')[2]}), and data.num_validation={self.num_validation} would be held out: "
                + (f"give data.num_validation={len(rows) // 10}, say" if rows else "give other data")
            )
        by_hash = sorted(rows, key=lambda row: hash64(normalised_problem(row.problem)))
        held_out = {row.id for row in by_hash[: self.num_validation]}
        if held_out:
            validation[self.name] = [row for row in rows if row.id in held_out]
        train = [row for row in rows if row.id not in held_out]
        report = replace(report, num_held_out=len(held_out), num_kept=len(train))
        return Problems(train=train, validation=validation, report=report)


def _problem_set(benchmark: ProblemSet | str) -> ProblemSet:
    return ProblemSet(path=benchmark) if isinstance(benchmark, str) else benchmark
