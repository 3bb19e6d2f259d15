"""Configuration → a report of runs and evaluations."""

from omegaconf import DictConfig


def report(cfg: DictConfig) -> None:
    """Not there yet."""
    raise NotImplementedError
