"""Configurations that `hydra_plugins.distinct_answers` adds to the search path."""
