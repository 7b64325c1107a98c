"""What a ``postgresql://`` URL says, without the driver: where, which schema, and nothing that is secret."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from ...contract import AgentError, Secret

DEFAULT_SCHEMA = "turnlog"
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_FORM = "write postgresql://user@host:port/database, and ?schema=name for tables of another name"


class Address(NamedTuple):
    """``dsn`` is for the driver alone; ``label`` is for people, and holds no password."""

    dsn: Secret
    schema: str
    label: str
    passwords: tuple[Secret, ...]

    def clean(self, text: str) -> str:
        """``text`` without the password, however short that is."""
        for password in self.passwords:
            text = text.replace(password.reveal(), "[secret]")
        return text


def read_url(url: str, schema: str | None = None) -> Address:
    """Take ``schema`` out of the URL, which the driver does not know, and guard the password in it.

    Raises ``ConfigInvalid``. Nothing is opened; host names are not looked up.
    """
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise AgentError("ConfigInvalid", f"the store's PostgreSQL URL cannot be read; {_FORM}") from None
    passwords = tuple(Secret(value) for value in _passwords(parts, query) if value)
    given = [value for name, value in query if name == "schema"]
    schema = schema or (given[-1] if given else DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema):
        raise AgentError(
            "ConfigInvalid",
            f"the schema {schema!r} of the store's PostgreSQL URL cannot be used: "
            "1 to 48 of a-z, 0-9 and _, no digit first",
        )
    rest = urlencode([pair for pair in query if pair[0] != "schema"])
    dsn = parts._replace(scheme="postgresql", query=rest).geturl()
    if not parts.netloc:  # urlsplit would drop the slashes that stand for "the default host"
        dsn = dsn.replace("postgresql:", "postgresql://", 1) if "://" not in dsn else dsn
    return Address(Secret(dsn), schema, _label(parts, query), passwords)


def _passwords(parts: SplitResult, query: list[tuple[str, str]]) -> list[str]:
    """Every spelling of it that a message of the driver may quote."""
    before, at, _ = parts.netloc.rpartition("@")
    _, colon, password = before.partition(":")
    found = [value for name, value in query if name in ("password", "sslpassword")]
    if at and colon:
        found += [password, unquote(password)]
    return found


def _label(parts: SplitResult, query: list[tuple[str, str]]) -> str:
    before, _, hosts = parts.netloc.rpartition("@")
    options = dict(query)
    user = unquote(before.partition(":")[0]) or options.get("user", "")
    where = hosts or options.get("host") or options.get("hostaddr") or "the default host"
    if "port" in options:
        where += f":{options['port']}"
    database = unquote(parts.path.lstrip("/")) or options.get("dbname", "")
    return (
        f"PostgreSQL at {where}"
        + (f", database {database}" if database else "")
        + (f", user {user}" if user else "")
    )
