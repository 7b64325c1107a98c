"""Request in, deltas out: the model base, the catalog of names, and one folder per provider.

Everything is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._base import Chunk, ErrorMapper, Model
    from ._catalog import BUILT_IN, ENTRY_POINT_GROUP, load_model
    from ._config import CacheConfig, ModelConfig, ModelInfo, ModelRequest, build_config
    from .router import (
        HealthView,
        ProviderRouter,
        Route,
        RouteContext,
        RoutePolicy,
        RouterNotice,
        by_role,
        cheapest,
        fastest,
        healthiest,
        in_order,
    )
    from .scripted import ScriptedCall, ScriptedError, ScriptedModel, Turn

__all__ = [
    "BUILT_IN",
    "CacheConfig",
    "Chunk",
    "ENTRY_POINT_GROUP",
    "ErrorMapper",
    "HealthView",
    "Model",
    "ModelConfig",
    "ModelInfo",
    "ModelRequest",
    "ProviderRouter",
    "Route",
    "RouteContext",
    "RoutePolicy",
    "RouterNotice",
    "ScriptedCall",
    "ScriptedError",
    "ScriptedModel",
    "Turn",
    "build_config",
    "by_role",
    "cheapest",
    "fastest",
    "healthiest",
    "in_order",
    "load_model",
]

_HOMES = {
    "BUILT_IN": "._catalog",
    "CacheConfig": "._config",
    "Chunk": "._base",
    "ENTRY_POINT_GROUP": "._catalog",
    "ErrorMapper": "._base",
    "HealthView": ".router",
    "Model": "._base",
    "ModelConfig": "._config",
    "ModelInfo": "._config",
    "ModelRequest": "._config",
    "ProviderRouter": ".router",
    "Route": ".router",
    "RouteContext": ".router",
    "RoutePolicy": ".router",
    "RouterNotice": ".router",
    "ScriptedCall": ".scripted",
    "ScriptedError": ".scripted",
    "ScriptedModel": ".scripted",
    "Turn": ".scripted",
    "build_config": "._config",
    "by_role": ".router",
    "cheapest": ".router",
    "fastest": ".router",
    "healthiest": ".router",
    "in_order": ".router",
    "load_model": "._catalog",
}
"""Name → the module that has it."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
