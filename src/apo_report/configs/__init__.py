"""Hydra configurations of `apo report` and `apo paper`, appended to the search path by `hydra_plugins.apo_packages`."""
