"""Hydra configurations of the methods, appended to the search path by `hydra_plugins.apo_packages`."""
