"""A folder with one readable file per session."""

from ._store import JsonlStore as JsonlStore
