"""Whether a stated answer equals a gold one, decided by computing: what runs in the verifier's worker processes.

It imports nothing of this package, and no torch, which would cost each worker seconds and hundreds of megabytes.

    [gold, answer] ──worker.main──► judge ──► reading (LaTeX → expressions), values (expressions → numbers) ──► status
"""
