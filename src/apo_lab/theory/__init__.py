"""Executable theory: the paper's propositions, checked on tabular policies in float64 through the losses that train.

`problems` are bandits and trees. `forces` gives the gradient of one token by a loss, `expectations` that of a group,
exactly. `statements` lists every claim, whether it is true, and its measurement. `apo theory` prints and draws them
all; `docs/theory.md` is the same list as a page.

All steps are plain gradient steps. Under Adam on tabular logits Δz hardly depends on the size of the gradient until
that nears Adam's ε of 1e-8, so "vanishing" would be a statement about coordinates that a network does not have: five
steps of 0.01 move z_k by 0.050 at π_k = 1e-4, 0.0488 at 1e-6 and 0.0019 at 1e-9.

Source: Wang et al. 2026, sections 2 to 4 and appendices B and C.
"""
