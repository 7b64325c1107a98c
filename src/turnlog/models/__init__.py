"""Request in, deltas out: the model base, the catalog of names, and one folder per provider."""

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
    "ENTRY_POINT_GROUP",
    "CacheConfig",
    "Chunk",
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
