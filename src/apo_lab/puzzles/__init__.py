"""Small worlds with several valid ways to an answer, of which everything can be listed and judged exactly."""

from apo_lab.puzzles.base import ListedAnswer, Puzzle
from apo_lab.puzzles.countdown import Countdown
from apo_lab.puzzles.locks import Locks
from apo_lab.puzzles.reward import PuzzleReward
from apo_lab.puzzles.source import PuzzleSource

__all__ = ["Countdown", "ListedAnswer", "Locks", "Puzzle", "PuzzleReward", "PuzzleSource"]
