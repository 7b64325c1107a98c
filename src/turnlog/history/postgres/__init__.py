"""Sessions in PostgreSQL, for many workers on many machines."""

from ._store import PostgresStore as PostgresStore
