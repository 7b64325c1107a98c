"""Fakes and contract kits, for this project's tests and for yours. Everything is loaded when first used.

Fakes: a scripted model, clocks and ids that are the same on every run, a store that fails on order, a
loopback server, a simulated event loop. Kits: ``check_model``, ``check_store``, ``check_widget`` and
``check_context_manager`` raise ``AssertionError`` naming what an implementation of yours gets wrong,
``check_session`` what is wrong with a log; they need no test framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnlog.models import ScriptedCall, ScriptedError, ScriptedModel, Turn

    from ._context_checks import check_context_manager
    from ._fault_store import FaultStore, StoreFault, fail_append, fill_disk, slow_append
    from ._golden import check_trace, read_trace
    from ._ids import FixedIds
    from ._loopback import Loopback, LoopbackAnswer, LoopbackRequest
    from ._model_cases import CaseCall, ModelCase, ModelReport, Wired
    from ._model_checks import check_model
    from ._request_rules import check_request
    from ._session_checks import OutsideRecord, check_session
    from ._simulated_session import SimulationReport, simulate
    from ._simulation import SimulatedProcess, Simulation, current_process
    from ._store_checks import check_store
    from ._time import FixedClock, VirtualClock
    from ._widget_checks import check_widget

__all__ = [
    "CaseCall",
    "FaultStore",
    "FixedClock",
    "FixedIds",
    "Loopback",
    "LoopbackAnswer",
    "LoopbackRequest",
    "ModelCase",
    "ModelReport",
    "OutsideRecord",
    "ScriptedCall",
    "ScriptedError",
    "ScriptedModel",
    "SimulatedProcess",
    "Simulation",
    "SimulationReport",
    "StoreFault",
    "Turn",
    "VirtualClock",
    "Wired",
    "check_context_manager",
    "check_model",
    "check_request",
    "check_session",
    "check_store",
    "check_trace",
    "check_widget",
    "current_process",
    "fail_append",
    "fill_disk",
    "read_trace",
    "simulate",
    "slow_append",
]

_HOMES: dict[str, str] = {
    "CaseCall": "turnlog.testing._model_cases",
    "FaultStore": "turnlog.testing._fault_store",
    "FixedClock": "turnlog.testing._time",
    "FixedIds": "turnlog.testing._ids",
    "Loopback": "turnlog.testing._loopback",
    "LoopbackAnswer": "turnlog.testing._loopback",
    "LoopbackRequest": "turnlog.testing._loopback",
    "ModelCase": "turnlog.testing._model_cases",
    "ModelReport": "turnlog.testing._model_cases",
    "OutsideRecord": "turnlog.testing._session_checks",
    "ScriptedCall": "turnlog.models",
    "ScriptedError": "turnlog.models",
    "ScriptedModel": "turnlog.models",
    "SimulatedProcess": "turnlog.testing._simulation",
    "Simulation": "turnlog.testing._simulation",
    "SimulationReport": "turnlog.testing._simulated_session",
    "StoreFault": "turnlog.testing._fault_store",
    "Turn": "turnlog.models",
    "VirtualClock": "turnlog.testing._time",
    "Wired": "turnlog.testing._model_cases",
    "check_context_manager": "turnlog.testing._context_checks",
    "check_model": "turnlog.testing._model_checks",
    "check_request": "turnlog.testing._request_rules",
    "check_session": "turnlog.testing._session_checks",
    "check_store": "turnlog.testing._store_checks",
    "check_trace": "turnlog.testing._golden",
    "check_widget": "turnlog.testing._widget_checks",
    "current_process": "turnlog.testing._simulation",
    "fail_append": "turnlog.testing._fault_store",
    "fill_disk": "turnlog.testing._fault_store",
    "read_trace": "turnlog.testing._golden",
    "simulate": "turnlog.testing._simulated_session",
    "slow_append": "turnlog.testing._fault_store",
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
