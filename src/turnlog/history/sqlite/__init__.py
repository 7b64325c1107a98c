"""The default store: one SQLite file."""

from ._store import SqliteStore as SqliteStore
