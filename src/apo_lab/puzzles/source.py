"""The problems of a puzzle as training and validation data."""

from dataclasses import dataclass

from apo_lab.puzzles.puzzle import Puzzle
from apo_lightning.data import FilterReport, Problems, Row
from apo_lightning.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PuzzleSource:
    """Training problems of a puzzle, and problems held out by its split.

    The problems depend on `seed` and not on the run's seed: runs with different seeds train on the same problems, in
    different orders, and are measured on the same held-out ones.

    Raises:
        ConfigError: `num_train` is below 1 or `num_validation` below 0.

    Example:
        >>> from apo_lab.puzzles import Locks
        >>> problems = PuzzleSource(puzzle=Locks(), num_train=4, num_validation=2).load()
        >>> len(problems.train), len(problems.validation["locks"])
        (4, 2)
    """

    puzzle: Puzzle
    num_train: int
    num_validation: int
    """Number of held-out problems."""
    seed: int = 0
    """The seed of the draw of the problems."""
    max_template_tokens: int = 0
    """Length of the text that `model.prompt_template` puts around a problem."""

    instruction = "{problem}"
    system = None

    def __post_init__(self) -> None:
        if self.num_train < 1 or self.num_validation < 0:
            raise ConfigError(
                f"num_train is {self.num_train} and num_validation {self.num_validation}: "
                "give at least 1 and at least 0"
            )

    @property
    def name(self) -> str:
        """The name of the puzzle and of its validation set."""
        return self.puzzle.name

    @property
    def max_prompt_tokens(self) -> int:
        """Length of the longest problem with the template around it."""
        return self.puzzle.max_prompt_tokens + self.max_template_tokens

    @property
    def max_completion_tokens(self) -> int:
        """Length of the longest answer with its end."""
        return self.puzzle.max_completion_tokens

    def check(self) -> None:
        """Do nothing: the problems are generated, so no file can be missing."""

    def load(self) -> Problems:
        """Draw the problems."""
        train, held_out = (
            [
                Row(id=problem, problem=problem, answer=problem)
                for problem in self.puzzle.problems(count, self.seed, held_out=held_out)
            ]
            for count, held_out in ((self.num_train, False), (self.num_validation, True))
        )
        report = FilterReport(num_rows=len(train) + len(held_out), num_held_out=len(held_out), num_kept=len(train))
        return Problems(train=train, validation={self.name: held_out} if held_out else {}, report=report)
