"""Fakes and contract kits, for this project's tests and for yours. Everything is loaded when first used.

Fakes: a scripted model, clocks and ids that are the same on every run, a store that fails on order, a
loopback server. Kits: ``check_model``, ``check_store``, ``check_widget`` raise ``AssertionError`` naming
what an implementation of yours gets wrong; they need no test framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnlog.models import ScriptedCall, ScriptedError, ScriptedModel, Turn

    from ._ids import FixedIds
    from ._loopback import Loopback, LoopbackAnswer, LoopbackRequest
    from ._time import FixedClock, VirtualClock

__all__ = [
    "FixedClock",
    "FixedIds",
    "Loopback",
    "LoopbackAnswer",
    "LoopbackRequest",
    "ScriptedCall",
    "ScriptedError",
    "ScriptedModel",
    "Turn",
    "VirtualClock",
]

_HOMES: dict[str, str] = {
    "FaultStore": "turnlog.testing._fault_store",
    "FixedClock": "turnlog.testing._time",
    "FixedIds": "turnlog.testing._ids",
    "Loopback": "turnlog.testing._loopback",
    "LoopbackAnswer": "turnlog.testing._loopback",
    "LoopbackRequest": "turnlog.testing._loopback",
    "ScriptedCall": "turnlog.models",
    "ScriptedError": "turnlog.models",
    "ScriptedModel": "turnlog.models",
    "Turn": "turnlog.models",
    "VirtualClock": "turnlog.testing._time",
    "check_model": "turnlog.testing._model_checks",
    "check_store": "turnlog.testing._store_checks",
    "check_widget": "turnlog.testing._widget_checks",
}
"""Name → the module that has it."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'turnlog.testing' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOMES)
