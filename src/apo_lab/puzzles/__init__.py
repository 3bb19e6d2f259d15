"""Small puzzles with several valid strategies, whose answers can all be listed and judged exactly."""

from apo_lab.puzzles.countdown import Countdown
from apo_lab.puzzles.divisors import Divisors
from apo_lab.puzzles.locks import Locks
from apo_lab.puzzles.puzzle import ListedAnswer, Puzzle
from apo_lab.puzzles.source import PuzzleReward, PuzzleSource

__all__ = ["Countdown", "Divisors", "ListedAnswer", "Locks", "Puzzle", "PuzzleReward", "PuzzleSource"]
