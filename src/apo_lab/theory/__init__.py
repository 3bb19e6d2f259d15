"""Executable theory: the paper's propositions on tabular policies, in float64, through the losses that train.

`problems` are bandits and trees; `forces` asks a shipped loss for the gradient of a token, and `expectations` for
that of a group, exactly. `statements` holds every claim with its verdict and the measurement behind it.
`python -m apo_lab.theory` prints and draws all of it; `docs/theory.md` is the same list as a page.

All steps here are plain gradient steps. Under Adam on tabular logits Δz hardly depends on the gradient's size until
that nears Adam's 1e-8, so that "vanishing" is a statement about coordinates which a network does not have: five steps
of 0.01 move z_k by 0.050 at π_k = 1e-4, 0.0488 at 1e-6 and 0.0019 at 1e-9.

Source: Wang et al. 2026, sections 2 to 4 and appendices B and C.
"""
