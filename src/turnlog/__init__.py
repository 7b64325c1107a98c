"""turnlog: an agent is a model, a context and an environment, and every turn is an entry in a log.

The few names most people need. Everything is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .approvals import Approvals as Approvals
    from .contract import AgentError as AgentError
    from .contract import Input as Input
    from .contract import Limits as Limits
    from .contract import ModelParams as ModelParams
    from .contract import RunEvent as RunEvent
    from .contract import RunResult as RunResult
    from .files import File as File
    from .history import open_store as open_store
    from .loop import Agent as Agent
    from .loop import Hooks as Hooks
    from .loop import RunStream as RunStream
    from .loop import Session as Session
    from .loop import open_session as open_session
    from .models import load_model as load_model
    from .tools import ToolContext as ToolContext
    from .tools import ToolError as ToolError
    from .tools import ToolResult as ToolResult
    from .tools import tool as tool
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            ".approvals": "Approvals",
            ".contract": "AgentError Input Limits ModelParams RunEvent RunResult",
            ".files": "File",
            ".history": "open_store",
            ".loop": "Agent Hooks RunStream Session open_session",
            ".models": "load_model",
            ".tools": "ToolContext ToolError ToolResult tool",
        },
        "__version__",
    )
