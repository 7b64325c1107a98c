from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


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
            gc.enable()
