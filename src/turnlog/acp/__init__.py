"""An agent in an editor: the Agent Client Protocol on standard input and output. Needs the extra ``acp``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._serve import serve_acp as serve_acp
else:
    __getattr__, __dir__ = lazy(__name__, {"._serve": "serve_acp"})
