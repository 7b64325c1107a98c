from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

_MANY = 10_000


@contextmanager
def bulk() -> Generator[None]:
    """Around code that makes very many objects that all stay: the collector would walk them again and again
    and find nothing. Only for synchronous stretches."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if gc.get_count()[0] > _MANY:
                _settle()
            gc.enable()


def _settle() -> None:
    """Count what is there among the old objects, which only a full collection looks at."""
    if gc.get_freeze_count() == 0:  # else the program froze objects of its own, which must stay so
        gc.freeze()
        gc.unfreeze()
