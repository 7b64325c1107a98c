"""Append, read, never change: sessions and the stores that keep them."""

from ._blobs import attach_images
from ._memory import MemoryStore
from ._session import Session
from ._sqlite import SqliteStore
from ._urls import default_store_url, open_store
from ._views import AgentState, messages_of, visible_entries

__all__ = [
    "AgentState",
    "MemoryStore",
    "Session",
    "SqliteStore",
    "attach_images",
    "default_store_url",
    "messages_of",
    "open_store",
    "visible_entries",
]
