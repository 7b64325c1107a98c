"""Which files of a working folder the user has allowed to take effect, remembered by hash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast


def config_folder() -> Path:
    """The user's own folder for settings of turnlog. A relative ``XDG_CONFIG_HOME`` is passed over, as its
    specification asks: it would lie in the working folder."""
    name, usual = (
        ("APPDATA", ("AppData", "Roaming")) if os.name == "nt" else ("XDG_CONFIG_HOME", (".config",))
    )
    given = Path(os.environ.get(name) or "")
    return (given if given.is_absolute() else Path.home().joinpath(*usual)) / "turnlog"


class Trusted(NamedTuple):
    """One thing that the user trusts: its kind (``mcp``, ``hooks``, …), where it is, and the hash it had."""

    kind: str
    path: str
    hash: str


class TrustStore:
    """Answers whether the user has trusted a file as it is now; the caller asks the user, never this class.

    ``kind`` says what the file may do once it is trusted, as ``mcp`` or ``hooks``: trust for one kind is none
    for another. ``content`` is what the caller has read and is about to use, so that nothing can change
    between the question and the use. Kept in ``trust.json`` of the user's config folder, readable by the user
    alone. A file that is broken, or that others may write, trusts nothing.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else config_folder() / "trust.json"

    def status(
        self, kind: str, path: str | os.PathLike[str], content: bytes | str
    ) -> Literal["trusted", "changed", "new"]:
        """``changed``: it was trusted with another content."""
        known = self._read().get(_key(kind, path))
        if known is None:
            return "new"
        return "trusted" if known == content_hash(content) else "changed"

    def trusted(self, kind: str, path: str | os.PathLike[str], content: bytes | str) -> bool:
        return self.status(kind, path, content) == "trusted"

    def trust(self, kind: str, path: str | os.PathLike[str], content: bytes | str) -> None:
        """Remember that the user trusts this content at this place. Raises ``OSError``."""
        with self._changing() as known:
            known[_key(kind, path)] = content_hash(content)

    def forget(self, kind: str, path: str | os.PathLike[str]) -> bool:
        """Trust it no longer; False when it was not trusted. Raises ``OSError``."""
        with self._changing() as known:
            return known.pop(_key(kind, path), None) is not None

    def entries(self) -> list[Trusted]:
        """All that is trusted, by kind and path."""
        return [Trusted(kind, path, digest) for (kind, path), digest in sorted(self._read().items())]

    def _read(self) -> dict[tuple[str, str], str]:
        try:
            with self.path.open("rb") as file:
                if os.name == "posix" and _is_foreign(os.fstat(file.fileno())):
                    return {}
                found: Any = json.loads(file.read())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(found, dict):
            return {}
        return {
            (kind, path): digest
            for kind, paths in cast("dict[str, Any]", found).items()
            if isinstance(paths, dict)
            for path, digest in cast("dict[str, Any]", paths).items()
            if isinstance(digest, str)
        }

    @contextlib.contextmanager
    def _changing(self) -> Generator[dict[tuple[str, str], str]]:
        """What is known, written back at the end. Two processes that change it take turns."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(self.path.with_suffix(".lock")):
            known = self._read()
            before = dict(known)
            yield known
            if known != before:
                self._write(known)

    def _write(self, known: dict[tuple[str, str], str]) -> None:
        nested: dict[str, dict[str, str]] = {}
        for (kind, path), digest in sorted(known.items()):
            nested.setdefault(kind, {})[path] = digest
        name = self.path.with_suffix(".new")
        with contextlib.suppress(OSError):
            name.unlink()  # of a process that died at this place; the lock is ours
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(nested, file, indent=2, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def content_hash(content: bytes | str) -> str:
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return "sha256-" + hashlib.sha256(data).hexdigest()


def _key(kind: str, path: str | os.PathLike[str]) -> tuple[str, str]:
    return kind, os.path.realpath(path)


def _is_foreign(found: os.stat_result) -> bool:
    return found.st_uid != os.getuid() or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if os.name == "posix":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
