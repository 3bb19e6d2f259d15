"""Research with apo_lightning: the laboratory, theory, special diagnostics, ablation losses, the paper's tables.

It registers as any other package would, through entry points and a Hydra search-path plugin, and imports the public
names of the framework alone (docs/extending.md).
"""
