"""Standard streams as they may be: closed, full, or of a terminal that cannot show every character."""

from __future__ import annotations

import codecs
import io
import os
import sys

_LOOKALIKES = {"·": "|", "→": "->", "✓": "ok", "✗": "no", "…": "...", "—": "-", "█": "#", "“": '"', "”": '"'}


def prepare_streams() -> None:
    """Before anything is opened or printed."""
    _fill_gaps()
    codecs.register_error("turnlog", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="turnlog")  # a terminal without UTF-8 shows a ? and not a traceback


def drop_output() -> None:
    """Nobody reads it, or it cannot be written: Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill_gaps() -> None:
    # A file that is opened takes the number of a closed stream: a database must not be standard output.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_LOOKALIKES.get(character, "?") for character in found), error.end
