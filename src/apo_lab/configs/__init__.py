"""Hydra configurations of the laboratory, appended to the search path by `hydra_plugins.apo_packages`."""
