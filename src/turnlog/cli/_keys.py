"""The keyboard: lines with editing, a paste as one message, and nothing echoed into an answer."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
from collections.abc import Callable, Generator
from typing import Any

try:
    import termios
except ImportError:  # Windows: a prompt is then a plain line
    termios = None

_SETTLES = 0.03  # seconds in which the rest of a paste arrives


def edit_lines() -> None:
    """Arrow keys at the prompt, and a paste that waits for Enter, where Python was built with them."""
    with contextlib.suppress(ImportError):
        readline = importlib.import_module("readline")
        can_paste = os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        if can_paste and "libedit" not in (readline.__doc__ or ""):
            readline.parse_and_bind("set enable-bracketed-paste on")


def prompt(text: str) -> str:
    """Read a line. Ctrl-C counts here and while a run is in progress; in between, when an answer has just
    ended and the key is pressed a moment too late, it must not end the chat."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return input(text)
    finally:
        if sys.platform != "win32":  # there a run has no other way to hear of it
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def prompt_anew(text: str) -> str:
    """Read a line that was typed after the question was shown: what was typed before does not answer it."""
    read_pending()
    return prompt(text)


def prompt_message(text: str, more: str, show: Callable[[str], None]) -> str:
    """Read a message. What was pasted with its first line belongs to it: lines that are complete are shown
    with ``show``, and one that is not is edited behind the prompt ``more``."""
    said = prompt(text)
    while rest := read_pending():
        *lines, unfinished = rest.split("\n")
        for line in lines:
            show(line)
            said += f"\n{line}"
        if unfinished:
            said += f"\n{_prompt_with(more, unfinished)}"
    return said


def _prompt_with(text: str, start: str) -> str:
    """Read a line that begins with ``start``, which can still be changed where lines are edited."""
    readline: Any = sys.modules.get("readline")
    if readline is None:
        return start + prompt(text + start)
    readline.set_startup_hook(lambda: readline.insert_text(start))
    try:
        return prompt(text)
    finally:
        readline.set_startup_hook(None)


def read_pending() -> str:
    """What was typed or pasted and not read yet, with line breaks as ``\\n``."""
    if termios is None:
        return ""
    found = b""
    with _without(termios.ICANON | termios.ECHO) as changed:
        while changed and select.select([sys.stdin], [], [], _SETTLES)[0]:
            piece = os.read(sys.stdin.fileno(), 65536)
            if not piece:
                break
            found += piece
    text = found.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\x04", "").replace("\0", "")  # Ctrl-D pressed too early


@contextlib.contextmanager
def quiet_keys() -> Generator[None]:
    """What is typed while an answer is printed is not mixed into it; the next prompt shows it."""
    if termios is None:
        yield
        return
    with _without(termios.ECHO):
        yield


@contextlib.contextmanager
def _without(flags: int) -> Generator[bool]:
    """The terminal without these modes, and as it was when we leave, also by a signal. False: no terminal."""
    terminal = termios
    assert terminal is not None
    try:
        before = terminal.tcgetattr(sys.stdin)
    except (terminal.error, ValueError, OSError):
        yield False
        return

    def restore() -> None:
        with contextlib.suppress(terminal.error, OSError):
            terminal.tcsetattr(sys.stdin, terminal.TCSANOW, before)

    def ended(number: int, frame: object) -> None:
        restore()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    changed = [*before]
    changed[3] = before[3] & ~flags
    terminal.tcsetattr(sys.stdin, terminal.TCSANOW, changed)
    others = {number: signal.signal(number, ended) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield True
    finally:
        restore()
        for number, action in others.items():
            signal.signal(number, action or signal.SIG_DFL)
