"""The command line: a thin shell over the library."""

from __future__ import annotations


def main() -> None:
    """Entry point of ``turnlog``."""
    try:
        from ._app import run  # click and rich are loaded when the command runs, not when the package is read
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


__all__ = ["main"]
