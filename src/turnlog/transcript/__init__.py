"""A conversation for others: a page to read as Markdown or HTML, and the messages of other systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._html import render_html as render_html
    from ._markdown import render_markdown as render_markdown
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "._html": "render_html",
            "._markdown": "render_markdown",
        },
    )
