"""Append, read, never change: sessions and the stores that keep them.

Everything is loaded when first used; a driver, when a store that needs it first reads or writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from ._appends import attach_images as attach_images
    from ._appends import check_input as check_input
    from ._appends import named_blobs as named_blobs
    from ._appends import refuse_calls as refuse_calls
    from ._appends import seal_entries as seal_entries
    from ._base import begins as begins
    from ._blank import PLACEHOLDER as PLACEHOLDER
    from ._export import export_jsonl as export_jsonl
    from ._export import fork as fork
    from ._export import import_jsonl as import_jsonl
    from ._memory import MemoryStore as MemoryStore
    from ._names import default_store_url as default_store_url
    from ._names import session_names as session_names
    from ._purge import purge as purge
    from ._purge import purge_scope as purge_scope
    from ._session import Session as Session
    from ._session import Subscriber as Subscriber
    from ._session import log_written as log_written
    from ._snapshot import Snapshot as Snapshot
    from ._snapshot import SnapshotStore as SnapshotStore
    from ._snapshot import decode_snapshot as decode_snapshot
    from ._snapshot import encode_snapshot as encode_snapshot
    from ._snapshot import make_snapshot as make_snapshot
    from ._snapshot import open_snapshot as open_snapshot
    from ._snapshot import same_snapshot as same_snapshot
    from ._state import BY_CHILD as BY_CHILD
    from ._state import RECAP_FAILED as RECAP_FAILED
    from ._state import CallState as CallState
    from ._state import SessionState as SessionState
    from ._state import may_hold_images as may_hold_images
    from ._state import usage_of as usage_of
    from ._timeline import RunSpan as RunSpan
    from ._timeline import Step as Step
    from ._timeline import Timeline as Timeline
    from ._timeline import TimelineReader as TimelineReader
    from ._timeline import timeline_of as timeline_of
    from ._urls import open_store as open_store
    from ._urls import show_url as show_url
    from ._verify import Problem as Problem
    from ._verify import check_unchanged as check_unchanged
    from ._verify import verify as verify
    from ._views import AgentState as AgentState
    from ._views import Announcing as Announcing
    from ._views import follow as follow
    from ._views import messages_of as messages_of
    from ._views import pending_in as pending_in
    from ._views import redaction_of as redaction_of
    from ._views import screens_in as screens_in
    from ._views import visible_entries as visible_entries
    from .jsonl import JsonlStore as JsonlStore
    from .postgres import PostgresStore as PostgresStore
    from .sqlite import SqliteStore as SqliteStore
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "._appends": "attach_images check_input named_blobs refuse_calls seal_entries",
            "._base": "begins",
            "._blank": "PLACEHOLDER",
            "._export": "export_jsonl fork import_jsonl",
            ".jsonl": "JsonlStore",
            "._memory": "MemoryStore",
            ".postgres": "PostgresStore",
            "._names": "default_store_url session_names",
            "._purge": "purge purge_scope",
            "._session": "Session Subscriber log_written",
            "._snapshot": "Snapshot SnapshotStore decode_snapshot encode_snapshot make_snapshot "
            "open_snapshot same_snapshot",
            "._state": "BY_CHILD RECAP_FAILED CallState SessionState may_hold_images usage_of",
            ".sqlite": "SqliteStore",
            "._timeline": "RunSpan Step Timeline TimelineReader timeline_of",
            "._urls": "open_store show_url",
            "._verify": "Problem check_unchanged verify",
            "._views": (
                "AgentState Announcing follow messages_of pending_in redaction_of screens_in visible_entries"
            ),
        },
    )
