"""turnlog: an agent is a model, a context and an environment, and every turn is a line in a log.

The few names most people need. Everything is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .contract import AgentError as AgentError
    from .contract import RunEvent as RunEvent
    from .contract import RunResult as RunResult
    from .loop import Agent as Agent
    from .models import load_model as load_model
    from .tools import tool as tool
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            ".contract": "AgentError RunEvent RunResult",
            ".loop": "Agent",
            ".models": "load_model",
            ".tools": "tool",
        },
        "__version__",
    )
