from __future__ import annotations

import os

from turnlog.contract import guard

_ENDINGS = ("_API_KEY", "_AUTH_TOKEN", "_ACCESS_TOKEN", "_SECRET_ACCESS_KEY", "_SESSION_TOKEN")


def guard_environment() -> None:
    """Cut the keys of this environment out of whatever is written, also before a model first uses them."""
    for name, value in os.environ.items():
        if name.upper().endswith(_ENDINGS):
            guard(value.strip())
