"""A hash for random choices that must not depend on the state of a generator."""

import hashlib


def hash64(text: str) -> bytes:
    """A 64-bit hash of the text, the same on every machine; sorting by it shuffles.

    Example:
        >>> hash64("5+7").hex()
        '4007e8982e815e07'
    """
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
