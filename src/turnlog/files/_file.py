"""Files as parts of a message: read once, within limits, and kept with the log from then on."""

from __future__ import annotations

import base64
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Self

from turnlog.contract import (
    PDF,
    PICTURES,
    TEXT,
    AgentError,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    mime_type_of,
)

from ._fetch import fetch

LIMIT = 32_000_000
"""Bytes of a file: the largest request that a provider takes."""
TEXT_LIMIT = 4_000_000
"""Bytes of a text, which all go into the context: the largest windows hold about as many."""


_NAMED = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".bmp": "image/bmp",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".heic": "image/heic",
    ".pdf": PDF,
    ".txt": TEXT,
    ".md": "text/markdown",
    ".csv": "text/csv",
    ".html": "text/html",
    ".json": "application/json",
    ".xml": "application/xml",
}
"""What a name says. Our own list: that of the system differs from machine to machine."""


@dataclass(frozen=True, slots=True)
class File:
    """A picture, a PDF or a text file as input: ``agent.run(["What is this?", File("cat.png")])``.

    The file is read when the run starts, and its bytes are kept with the log: it may be gone when the run
    is resumed. What it is, its bytes say; raises ``InvalidMessage`` for a file that is none of the three, is
    not what its name says, is empty or is larger than ``max_bytes``. ``name`` is what the model is told.
    """

    path: str | os.PathLike[str]
    name: str | None = None
    max_bytes: int = LIMIT
    data: bytes | None = field(default=None, repr=False)
    """The content, where it is at hand; then nothing is read from ``path``."""

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Self:
        return cls(name, data=data)

    @classmethod
    async def from_url(
        cls, url: str, *, max_bytes: int = LIMIT, timeout: float = 30.0, allow_private: bool = False
    ) -> Self:
        """Fetch a file. Raises ``InvalidMessage`` for an address that is not public unless ``allow_private``,
        for more than ``max_bytes``, and for what does not come within ``timeout`` seconds."""
        fetched = await fetch(url, max_bytes=max_bytes, timeout=timeout, allow_private=allow_private)
        return cls(url, name=fetched.name, max_bytes=max_bytes, data=fetched.data)

    def part(self) -> ImagePart | FileRefPart:
        """The part to send, with the bytes in it."""
        return read_part(self)


def read_part(file: File) -> ImagePart | FileRefPart:
    data = _read(file) if file.data is None else file.data
    name = file.name or PurePath(os.fspath(file.path)).name
    _check_size(name, len(data), file.max_bytes)
    if not data:
        raise _refuse(f"{name} is empty")
    kind = mime_type_of(data)
    if kind is None:
        raise _refuse(f"{name} is no picture (png, jpeg, gif, webp), PDF or text; the model cannot read it")
    claimed = _NAMED.get(PurePath(name).suffix.lower())
    if claimed is not None and _family(claimed) != _family(kind):
        raise _refuse(
            f"{name} is a {_family(kind)} ({kind}), not the {_family(claimed)} that its name says; check the "
            "file, or give it another name with File(path, name=…)"
        )
    encoded = base64.b64encode(data).decode()
    if kind in PICTURES:
        return ImagePart(payload=Image(mime_type=kind, data=encoded, name=name))
    if kind == TEXT:
        _check_size(name, len(data), TEXT_LIMIT, "give the model a tool that reads it in pieces")
        kind = claimed or TEXT
    return FileRefPart(payload=FileRef(path=name, mime_type=kind, size=len(data), data=encoded))


def _read(file: File) -> bytes:
    """The bytes of a regular file, never more than may be sent; a device or a pipe is not waited for."""
    path = Path(file.path)
    try:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(number, "rb") as opened:
            about = os.fstat(number)
            if stat.S_ISDIR(about.st_mode):
                raise _refuse(f"{path} is a folder; name a file")
            if not stat.S_ISREG(about.st_mode):
                raise _refuse(f"{path} is a device or a pipe; name a file")
            _check_size(str(path), about.st_size, file.max_bytes)
            return opened.read(file.max_bytes + 1)
    except IsADirectoryError:
        raise _refuse(f"{path} is a folder; name a file") from None
    except FileNotFoundError as error:
        raise _refuse(f"there is no file {path}") from error
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        why = error.strerror if isinstance(error, OSError) else error
        raise _refuse(f"{path} cannot be read: {why}") from error


def _check_size(name: str, size: int, limit: int, advice: str = "make it smaller, or split it") -> None:
    if size > limit:
        raise _refuse(f"{name} has {size:,} bytes; the limit is {limit:,}: {advice}")


def _family(kind: str) -> str:
    if kind.startswith("image/"):
        return "picture"
    return "PDF" if kind == PDF else "text"


def _refuse(message: str) -> AgentError:
    return AgentError("InvalidMessage", message)
