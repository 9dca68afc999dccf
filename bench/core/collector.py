"""Pause Python's garbage collector while a program builds many objects that all stay in use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Switch off the garbage collector.

    The collector would search all objects again and again, although none of them can be freed. Objects outside of
    reference cycles are freed without the collector.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
