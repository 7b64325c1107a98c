"""Request in, deltas out: the model base, the catalog of names, and one folder per provider.

Everything is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._base import Chunk as Chunk
    from ._base import ErrorMapper as ErrorMapper
    from ._base import Model as Model
    from ._base import batched as batched
    from ._catalog import BUILT_IN as BUILT_IN
    from ._catalog import ENTRY_POINT_GROUP as ENTRY_POINT_GROUP
    from ._catalog import load_model as load_model
    from ._config import CacheConfig as CacheConfig
    from ._config import ModelConfig as ModelConfig
    from ._config import ModelInfo as ModelInfo
    from ._config import ModelRequest as ModelRequest
    from ._config import PromptPart as PromptPart
    from ._config import build_config as build_config
    from .router import HealthView as HealthView
    from .router import ProviderRouter as ProviderRouter
    from .router import Route as Route
    from .router import RouteContext as RouteContext
    from .router import RoutePolicy as RoutePolicy
    from .router import RouterNotice as RouterNotice
    from .router import by_role as by_role
    from .router import cheapest as cheapest
    from .router import fastest as fastest
    from .router import healthiest as healthiest
    from .router import in_order as in_order
    from .scripted import ScriptedCall as ScriptedCall
    from .scripted import ScriptedError as ScriptedError
    from .scripted import ScriptedModel as ScriptedModel
    from .scripted import Turn as Turn
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "._base": "Chunk ErrorMapper Model batched",
            "._catalog": "BUILT_IN ENTRY_POINT_GROUP load_model",
            "._config": "CacheConfig ModelConfig ModelInfo ModelRequest PromptPart build_config",
            ".router": "HealthView ProviderRouter Route RouteContext RoutePolicy RouterNotice by_role"
            " cheapest fastest healthiest in_order",
            ".scripted": "ScriptedCall ScriptedError ScriptedModel Turn",
        },
    )
