"""The problems of a puzzle as training and validation data, and the reward that judges their answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from apo_lab.puzzles.puzzle import Puzzle
from apo_lightning.common.ranges import Checked, Within
from apo_lightning.data import FilterReport, Problems, Row
from apo_lightning.errors import ConfigError
from apo_lightning.types import Verdict


@dataclass(frozen=True, kw_only=True)
class PuzzleSource(Checked):
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
    num_train: Annotated[int, Within("[1, inf)")]
    num_validation: Annotated[int, Within("[0, inf)")]
    """Number of held-out problems."""
    seed: int = 0
    """The seed of the draw of the problems."""
    max_template_tokens: int = 0
    """Length of the text that `model.prompt_template` puts around a problem."""

    instruction = "{problem}"
    system = None

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


class PuzzleReward:
    """1 if the whole completion is a valid answer of the problem, else 0.

    A problem has many answers, so a row's gold answer is the problem itself, and the puzzle judges.

    Example:
        >>> from apo_lab.puzzles import Countdown
        >>> [verdict.reward for verdict in PuzzleReward(Countdown()).score(["9*5-7+3+1", "42"], ["13579=42:"] * 2)]
        [1.0, 0.0]
    """

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order."""
        return [
            Verdict(reward=1.0, status="correct", extracted=completion)
            if self.puzzle.is_correct(problem, completion)
            else Verdict(reward=0.0, status="incorrect", extracted=completion)
            for completion, problem in zip(completions, answers, strict=True)
        ]

    def check_answers(self, answers: Sequence[str]) -> None:
        """Raise `ConfigError` for the first text that is no problem of the puzzle."""
        for problem in answers:
            if not self.puzzle.is_problem(problem):
                raise ConfigError(
                    f"'{problem[:80]}' is no problem of {self.puzzle.name}: give reward and data the same puzzle"
                )

    def close(self) -> None:
        """Do nothing: the reward has no process to stop."""
