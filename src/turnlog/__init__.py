"""turnlog: an agent is a model, a context and an environment, and every turn is a line in a log.

The few names most people need. Everything is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .contract import AgentError, RunEvent, RunResult
    from .loop import Agent
    from .models import load_model
    from .tools import tool

__version__ = "0.1.0"

__all__ = ["Agent", "AgentError", "RunEvent", "RunResult", "__version__", "load_model", "tool"]

_HOMES = {
    "Agent": "loop",
    "AgentError": "contract",
    "RunEvent": "contract",
    "RunResult": "contract",
    "load_model": "models",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnlog' has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
