"""Runtime state with tools and a view for the model; rebuilt from the log, never kept beside it."""

from ._builtin import MemoryNotebookWidget, Notebook, Todo, TodoWidget, Workspace, WorkspaceWidget
from ._host import WidgetHost, screen_at
from ._widget import RenderContext, Widget, WidgetAnswer, WidgetToolContext

__all__ = [
    "MemoryNotebookWidget",
    "Notebook",
    "RenderContext",
    "Todo",
    "TodoWidget",
    "Widget",
    "WidgetAnswer",
    "WidgetHost",
    "WidgetToolContext",
    "Workspace",
    "WorkspaceWidget",
    "screen_at",
]
