"""The hall: state folded from the log, decisions made from it, the runner, the agent, replay.

Everything is loaded when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from turnlog.approvals import Approvals as Approvals
    from turnlog.approvals import Decision as Decision
    from turnlog.context import ContextDiff as ContextDiff
    from turnlog.context import ContextView as ContextView
    from turnlog.context import diff_contexts as diff_contexts
    from turnlog.models import load_model as load_model
    from turnlog.observe import Span as Span
    from turnlog.observe import to_otlp as to_otlp
    from turnlog.runtime import probe_sandbox as probe_sandbox
    from turnlog.tools import Tool as Tool
    from turnlog.widgets import Notebook as Notebook

    from ._agent import Agent as Agent
    from ._agent_config import AgentConfig as AgentConfig
    from ._agent_config import load_config as load_config
    from ._code import coding_parts as coding_parts
    from ._command_hooks import CommandHook as CommandHook
    from ._command_hooks import read_hooks as read_hooks
    from ._compact import compact_session as compact_session
    from ._decide import decide as decide
    from ._decide import plan_retry as plan_retry
    from ._events import STRIDE as STRIDE
    from ._events import EventReader as EventReader
    from ._folds import Memory as Memory
    from ._handle import ExportFormat as ExportFormat
    from ._handle import Session as Session
    from ._handle import StoredSession as StoredSession
    from ._handle import open_session as open_session
    from ._handoff import Handoff as Handoff
    from ._journal import Undone as Undone
    from ._lease import SessionLease as SessionLease
    from ._loop import AgentLoop as AgentLoop
    from ._map import Batch as Batch
    from ._map import Mapped as Mapped
    from ._map import ProgressBar as ProgressBar
    from ._open_sessions import LoopParts as LoopParts
    from ._open_sessions import OpenRun as OpenRun
    from ._open_sessions import SessionOptions as SessionOptions
    from ._options import AnyInput as AnyInput
    from ._options import RunOptions as RunOptions
    from ._options import said_by as said_by
    from ._ports import Change as Change
    from ._ports import Hooks as Hooks
    from ._ports import Note as Note
    from ._ports import Question as Question
    from ._ports import RunIds as RunIds
    from ._ports import Veto as Veto
    from ._project import Project as Project
    from ._project import ProjectFile as ProjectFile
    from ._replay import ReplayReport as ReplayReport
    from ._replay import replay as replay
    from ._replay import replay_entries as replay_entries
    from ._rerun import Comparison as Comparison
    from ._rerun import RerunOptions as RerunOptions
    from ._rerun import RerunPreview as RerunPreview
    from ._skills import Skill as Skill
    from ._skills import Skills as Skills
    from ._stored import PendingAnswer as PendingAnswer
    from ._stored import check_snapshot as check_snapshot
    from ._stored import explain as explain
    from ._stored import fork_session as fork_session
    from ._stored import pending_answers as pending_answers
    from ._stored import pending_calls as pending_calls
    from ._stored import purge_entries as purge_entries
    from ._stored import record_decision as record_decision
    from ._stored import redact_entries as redact_entries
    from ._stored import trace_of as trace_of
    from ._stream import Run as Run
    from ._stream import RunStream as RunStream
    from ._stream import SyncRunStream as SyncRunStream
    from ._views import Glance as Glance
    from ._views import Hit as Hit
    from ._views import Log as Log
    from ._views import Logs as Logs
    from ._views import Saw as Saw
    from ._views import call_at as call_at
    from ._views import saw as saw
    from ._views import screen_at as screen_at
    from ._views import words_of as words_of
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "turnlog.approvals": "Approvals Decision",
            "turnlog.context": "ContextDiff ContextView diff_contexts",
            "turnlog.models": "load_model",
            "turnlog.observe": "Span to_otlp",
            "turnlog.runtime": "probe_sandbox",
            "turnlog.tools": "Tool",
            "turnlog.widgets": "Notebook",
            "._agent": "Agent",
            "._agent_config": "AgentConfig load_config",
            "._code": "coding_parts",
            "._compact": "compact_session",
            "._decide": "decide plan_retry",
            "._command_hooks": "CommandHook read_hooks",
            "._project": "Project ProjectFile",
            "._skills": "Skill Skills",
            "._ports": "Change Hooks Note Question RunIds Veto",
            "._journal": "Undone",
            "._events": "EventReader STRIDE",
            "._loop": "AgentLoop",
            "._map": "Batch Mapped ProgressBar",
            "._folds": "Memory",
            "._stored": "PendingAnswer check_snapshot explain fork_session pending_answers pending_calls "
            "purge_entries record_decision redact_entries trace_of",
            "._rerun": "Comparison RerunOptions RerunPreview",
            "._replay": "ReplayReport replay replay_entries",
            "._lease": "SessionLease",
            "._options": "AnyInput RunOptions said_by",
            "._open_sessions": "LoopParts OpenRun SessionOptions",
            "._handle": "ExportFormat Session StoredSession open_session",
            "._handoff": "Handoff",
            "._stream": "Run RunStream SyncRunStream",
            "._views": "Glance Hit Log Logs Saw call_at saw screen_at words_of",
        },
    )
