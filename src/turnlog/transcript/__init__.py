"""A conversation for others: a page to read as Markdown or HTML, and the messages of other systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._html import picture_type as picture_type
    from ._html import render_html as render_html
    from ._markdown import render_markdown as render_markdown
    from ._messages import MessageFormat as MessageFormat
    from ._messages import export_messages as export_messages
    from ._messages import import_messages as import_messages
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "._html": "picture_type render_html",
            "._markdown": "render_markdown",
            "._messages": "MessageFormat export_messages import_messages",
        },
    )
