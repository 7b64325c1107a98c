"""What bytes are, by themselves: the name of a file and what a server says of it are only claims."""

from __future__ import annotations

import codecs
import re

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The pictures that every provider which takes pictures takes."""
PDF = "application/pdf"
TEXT = "text/plain"

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROLS = re.compile(r"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
"""What no text has: bell, tab, line ends, form feed and escape may be in one."""


def mime_type_of(data: bytes) -> str | None:
    """The MIME type of ``data``: a picture, a PDF or text; None for everything else."""
    if picture := picture_kind(data):
        return picture
    if b"%PDF-" in data[:1024]:
        return PDF
    return TEXT if decode_text(data) is not None else None


def picture_kind(data: bytes) -> str | None:
    """The MIME type of a picture; None where ``data`` is none."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def decode_text(data: bytes) -> str | None:
    """``data`` as text: by its byte order mark, as UTF-8, or as the Western encoding that old files have;
    None where it is no text."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            text = data[len(mark) :].decode(encoding, "replace")
            return None if _CONTROLS.search(text) else text
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
        if "\ufffd" in text:
            return None
    return None if _CONTROLS.search(text) else text
