"""Small worlds with several valid ways to an answer, of which everything can be listed and judged exactly."""

from apo_lightning.puzzles.base import ListedAnswer, Puzzle
from apo_lightning.puzzles.countdown import Countdown
from apo_lightning.puzzles.locks import Locks

__all__ = ["Countdown", "ListedAnswer", "Locks", "Puzzle"]
