"""The hash behind every random choice that must not depend on a generator's state."""

import hashlib


def hash64(text: str) -> bytes:
    """64 bits that depend on the text alone, the same on every machine; sorting by them shuffles.

    Example:
        >>> hash64("5+7").hex()
        '4007e8982e815e07'
    """
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
