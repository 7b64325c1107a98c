"""A lock between processes, held through an open file."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from ..contract import AgentError

_NAP = 0.003


@contextmanager
def locked(path: str, timeout: float) -> Generator[int]:
    """Hold the lock file at ``path`` alone; yields its descriptor. Raises ``SessionBusy`` after ``timeout``.

    The system lets go of it when the process dies.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        deadline = time.monotonic() + timeout
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise AgentError(
                    "SessionBusy",
                    f"{path} stayed locked by another process for {timeout:.0f} s; try again",
                    meta={"path": path},
                )
            time.sleep(_NAP)
        try:
            yield descriptor
        finally:
            _unlock(descriptor)
    finally:
        os.close(descriptor)


if os.name == "nt":  # pragma: no cover

    def _try_lock(descriptor: int) -> bool:
        import msvcrt

        try:
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # far beyond the content, which stays readable
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
        return True

    def _unlock(descriptor: int) -> None:
        """Closing does it."""

else:

    def _try_lock(descriptor: int) -> bool:
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        """Closing is not enough: a process that was forked meanwhile has a copy of the descriptor."""
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)
