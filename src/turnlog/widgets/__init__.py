"""Runtime state with tools and a view for the model; rebuilt from the log, never kept beside it."""

from ._host import WidgetHost, screen_at
from ._notebook import MemoryNotebookWidget, Notebook
from ._todo import Todo, TodoWidget
from ._widget import RenderContext, Widget, WidgetAnswer, WidgetToolContext
from ._workspace import Workspace, WorkspaceWidget

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
