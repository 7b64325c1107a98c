"""Fakes and contract kits, for this project's tests and for yours. Everything is loaded when first used.

Fakes: a scripted model, clocks and ids that are the same on every run, a store that fails on order, a
loopback server, a runtime in memory, a simulated event loop. Kits: ``check_model``, ``check_store``,
``check_widget``, ``check_toolset``, ``check_runtime`` and ``check_context_manager`` raise ``AssertionError``
naming what an implementation of yours gets wrong, ``check_session`` what is wrong with a log; they need no
test framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from turnlog.models import ScriptedCall as ScriptedCall
    from turnlog.models import ScriptedError as ScriptedError
    from turnlog.models import ScriptedModel as ScriptedModel
    from turnlog.models import Turn as Turn

    from ._context_checks import check_context_manager as check_context_manager
    from ._fake_runtime import FakeOutput as FakeOutput
    from ._fake_runtime import FakeProcess as FakeProcess
    from ._fake_runtime import FakeRuntime as FakeRuntime
    from ._fault_store import FaultStore as FaultStore
    from ._fault_store import StoreFault as StoreFault
    from ._fault_store import fail_append as fail_append
    from ._fault_store import fill_disk as fill_disk
    from ._fault_store import slow_append as slow_append
    from ._loopback import Loopback as Loopback
    from ._loopback import LoopbackAnswer as LoopbackAnswer
    from ._loopback import LoopbackRequest as LoopbackRequest
    from ._model_cases import CaseCall as CaseCall
    from ._model_cases import ModelCase as ModelCase
    from ._model_cases import ModelReport as ModelReport
    from ._model_cases import Wired as Wired
    from ._model_checks import check_model as check_model
    from ._model_recorded import RecordedModel as RecordedModel
    from ._model_recorded import check_trace as check_trace
    from ._model_recorded import read_trace as read_trace
    from ._recording import RecordingModel as RecordingModel
    from ._request_rules import check_request as check_request
    from ._runtime_checks import check_runtime as check_runtime
    from ._session_checks import OutsideRecord as OutsideRecord
    from ._session_checks import check_session as check_session
    from ._simulated_session import SimulationReport as SimulationReport
    from ._simulated_session import simulate as simulate
    from ._simulation import SimulatedProcess as SimulatedProcess
    from ._simulation import Simulation as Simulation
    from ._simulation import current_process as current_process
    from ._store_checks import check_store as check_store
    from ._time import FixedClock as FixedClock
    from ._time import FixedIds as FixedIds
    from ._time import VirtualClock as VirtualClock
    from ._toolset_checks import check_toolset as check_toolset
    from ._widget_checks import check_widget as check_widget
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "turnlog.models": "ScriptedCall ScriptedError ScriptedModel Turn",
            "._context_checks": "check_context_manager",
            "._fake_runtime": "FakeOutput FakeProcess FakeRuntime",
            "._fault_store": "FaultStore StoreFault fail_append fill_disk slow_append",
            "._loopback": "Loopback LoopbackAnswer LoopbackRequest",
            "._model_cases": "CaseCall ModelCase ModelReport Wired",
            "._model_checks": "check_model",
            "._model_recorded": "RecordedModel check_trace read_trace",
            "._recording": "RecordingModel",
            "._request_rules": "check_request",
            "._runtime_checks": "check_runtime",
            "._session_checks": "OutsideRecord check_session",
            "._simulated_session": "SimulationReport simulate",
            "._simulation": "SimulatedProcess Simulation current_process",
            "._store_checks": "check_store",
            "._time": "FixedClock FixedIds VirtualClock",
            "._toolset_checks": "check_toolset",
            "._widget_checks": "check_widget",
        },
    )
