"""Equality of an answer and a gold answer by computation; runs in the verifier's worker processes.

Imports nothing else of this project, and no torch, which would cost each worker seconds and hundreds of megabytes.

    [gold, answer] ──worker.main──► judge ──► reading (LaTeX → expressions), values (expressions → numbers) ──► status
"""

OUT_OF_MEMORY = 3
"""Exit status of a worker's child whose answer needed more memory than it may have."""
