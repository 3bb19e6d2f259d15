"""The reward of a puzzle."""

from collections.abc import Sequence

from apo_lab.puzzles.puzzle import Puzzle
from apo_lightning.errors import ConfigError
from apo_lightning.types import Verdict


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
