"""The HTTP server: sessions, runs, live events, approvals and the timeline in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._app import create_app as create_app
    from ._serve import serve as serve
else:
    __getattr__, __dir__ = lazy(__name__, {"._app": "create_app", "._serve": "serve"})
