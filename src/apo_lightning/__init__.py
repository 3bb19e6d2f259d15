"""On-policy RL with verifiable rewards: Anchored Policy Optimization and its relatives."""

__version__ = "0.1.0"
