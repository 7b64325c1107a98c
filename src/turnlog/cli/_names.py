"""What the completion scripts ask for: the names of sessions."""

from __future__ import annotations

import sys

from turnlog.history import default_store_url, session_names

_LONGEST = 60


def print_names(words: list[str]) -> None:
    """``[--store=URL] -- [PREFIX]``: each name and what the session is about, both ended by a zero byte,
    which no name holds. A store that cannot be read has none: a message would land in the line that is typed.
    """
    try:
        split = words.index("--")
        given = [word.removeprefix("--store=") for word in words[:split]]
        for name, about in session_names([*given, default_store_url()][0], "".join(words[split + 1 :])):
            sys.stdout.buffer.write(f"{name}\0{_one_line(about)}\0".encode())
        sys.stdout.buffer.flush()
    except (Exception, KeyboardInterrupt):
        return


def _one_line(text: str) -> str:
    text = " ".join("".join(each if each.isprintable() else " " for each in text[: 4 * _LONGEST]).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
