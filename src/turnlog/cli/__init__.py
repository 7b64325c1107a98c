"""The command line: a thin shell over the library."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of ``turnlog``."""
    if sys.argv[1:3] == ["completion", "--sessions"]:
        from ._names import print_names  # a shell waits for them at every press of a key

        print_names(sys.argv[3:])
        return
    try:
        from ._app import run  # click and rich are loaded when the command runs, not when the package is read
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


__all__ = ["main"]
