"""Imports of large libraries."""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_searched() -> Iterator[None]:
    """Imports inside are not searched for garbage, neither while they are made nor later.

    torch, Lightning and transformers make half a million objects that stay. Each search of all of them takes 0.26 s,
    and a start has several. Where nothing new is imported, as in the second job of a sweep, later searches leave
    nothing out: they must find the model of the first.
    """
    was_on, num_known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > num_known:
            gc.freeze()
            atexit.register(gc.unfreeze)  # some libraries print at exit which of their objects were never freed
        if was_on:
            gc.enable()
