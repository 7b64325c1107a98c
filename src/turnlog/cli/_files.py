"""Files that people hand to a run, and ``files``: those that a session holds, listed and written out."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import click

from turnlog.contract import (
    AgentError,
    Entry,
    FileRef,
    FileRefPart,
    Image,
    ImagePart,
    Message,
    ModelInputEntry,
    ModelOutputEntry,
    Store,
    ToolResultPart,
    ToolResultsEntry,
    about_file,
    pictures_of,
)
from turnlog.files import File
from turnlog.history import visible_entries

from ._app import err, json_option, out, session_argument, store_option, with_store, write_json
from ._text import safe

_LARGEST = 32_000_000
_ENDINGS = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "application/pdf": ".pdf",
}
_NOT_IN_NAMES = re.compile(r"[^\w .()+-]+")


def file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that hand files to a run."""
    for option in (
        click.option(
            "--allow-private", is_flag=True, help="Let --file fetch from addresses that are not public."
        ),
        click.option(
            "--file",
            "-f",
            "files",
            multiple=True,
            metavar="PATH",
            type=click.Path(readable=False),
            help="A picture, a PDF or a text file to send along, or its https:// address; - for standard "
            "input; can be repeated.",
        ),
    ):
        command = option(command)
    return command


def read_files(names: Sequence[str], *, allow_private: bool = False) -> list[ImagePart | FileRefPart]:
    """The parts to send for what was named on a command line. Raises ``InvalidMessage``."""
    return [_given(name, allow_private).part() for name in names]


def _given(name: str, allow_private: bool) -> File:
    if name == "-":
        return File.from_bytes(sys.stdin.buffer.read(_LARGEST + 1), name="standard input")
    if urlsplit(name).scheme in ("http", "https"):
        with ThreadPoolExecutor(1) as thread:  # a chat may be inside of an event loop
            return thread.submit(asyncio.run, File.from_url(name, allow_private=allow_private)).result()
    return File(name)


def files_in(said: str, *, pasted: bool) -> list[ImagePart | FileRefPart] | None:
    """The files that a line of a chat hands over with /attach, or with ``pasted`` as bare paths; None when it
    is a message. Raises ``AgentError`` for a file that cannot be read."""
    word, _, rest = said.strip().partition(" ")
    names = pasted_files(said) if pasted else []
    if word == "/attach":
        names = pasted_files(rest) or [rest.strip()]
    return read_files(names) if names else None


def pasted_files(text: str) -> list[str]:
    """The paths in ``text`` where it holds nothing else, as a terminal writes them when files are dropped on
    it: quoted, escaped, or as ``file://`` addresses. Only paths that begin at the root or at home count."""
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    found: list[str] = []
    for word in words:
        path = unquote(urlsplit(word).path) if word.startswith("file://") else os.path.expanduser(word)
        if not (word.startswith(("/", "~/", "file://")) and os.path.isfile(path)):
            return []
        found.append(path)
    return found


def say_attached(part: ImagePart | FileRefPart) -> None:
    err.print(f"[dim]attached {safe(about_file(part.payload))}; it is sent with your next message[/]")


def say_made(message: Message | None, session: str) -> None:
    """Tell of the pictures in an answer, and how to get them."""
    made = pictures_of(message) if message is not None else []
    for picture in made:
        size = len(base64.b64decode(picture.data or ""))
        err.print(f"[dim]the answer holds a picture ({safe(picture.mime_type)}, {size:,} bytes)[/]")
    if made:
        err.print(f"[dim]write it with: {safe(shlex.join(['turnlog', 'files', session]))} --save FOLDER[/]")


class _Held(NamedTuple):
    """A file of a session: the entry that holds it, who gave it, and where its bytes are."""

    seq: int
    by: str
    file: Image | FileRef


@click.command("files")
@session_argument
@click.option("--save", metavar="FOLDER", type=click.Path(file_okay=False), help="Write them to FOLDER.")
@store_option
@json_option
def files_command(session: str, save: str | None, store_url: str | None, as_json: bool) -> None:
    """List the pictures and files of SESSION: those given to the agent, those that tools returned, and those
    that the model made. The log keeps them, also when the file they came from is gone."""

    async def work(store: Store) -> None:
        held = [one for entry in visible_entries(await store.load(session)) for one in _held_in(entry)]
        for number, one in enumerate(held, 1):
            data = await _bytes_of(store, one.file)
            place = _write(Path(save), number, one.file, data) if save and data is not None else None
            _tell(one, data, place, as_json)
        if not held and not as_json:
            err.print(f"no files are in {safe(session)}")

    with_store(store_url, work)


def _held_in(entry: Entry) -> Iterator[_Held]:
    match entry:
        case ModelInputEntry():
            by = "user"
        case ToolResultsEntry():
            by = "tool"
        case ModelOutputEntry():
            yield from (_Held(entry.seq, "model", made) for made in pictures_of(entry.payload.message))
            return
        case _:
            return
    for part in entry.payload.message.parts:
        content = part.payload.content if isinstance(part, ToolResultPart) else [part]
        for inner in content if isinstance(content, list) else ():
            if isinstance(inner, ImagePart | FileRefPart):
                yield _Held(entry.seq, by, inner.payload)


async def _bytes_of(store: Store, file: Image | FileRef) -> bytes | None:
    if file.data is not None:
        return base64.b64decode(file.data)
    if file.url is None or not file.url.startswith("blob:"):
        return None
    try:
        return await store.get_blob(file.url.removeprefix("blob:"))
    except AgentError as error:
        err.print(f"[yellow]{error.code}[/]: {safe(error.message)}")
        return None


def _write(folder: Path, number: int, file: Image | FileRef, data: bytes) -> Path:
    """Under its own name, with a number before it: what is in a log never chooses where it is written."""
    given = file.name if isinstance(file, Image) else file.path
    name = _NOT_IN_NAMES.sub("_", Path(given or "picture").name)[-100:]
    if not Path(name).suffix:
        name += _ENDINGS.get(file.mime_type or "", "")
    place = folder / f"{number}-{name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        with open(handle, "wb") as opened:
            opened.write(data)
    except FileExistsError as error:
        raise AgentError("ConfigInvalid", f"{place} is there already; name another folder") from error
    except OSError as error:
        raise AgentError("ConfigInvalid", f"cannot write {place}: {error.strerror}") from error
    return place


def _tell(held: _Held, data: bytes | None, place: Path | None, as_json: bool) -> None:
    file = held.file
    name = (file.name if isinstance(file, Image) else file.path) or ""
    if as_json:
        write_json(
            {
                "seq": held.seq,
                "by": held.by,
                "name": name,
                "mimeType": file.mime_type,
                "size": None if data is None else len(data),
                "url": file.url,
                "savedAs": None if place is None else str(place),
            }
        )
        return
    size = "its bytes are not here" if data is None else f"{len(data):,} bytes"
    where = f" → {safe(str(place))}" if place is not None else ""
    words = ", ".join(filter(None, (name, file.mime_type, size)))
    out.print(f"[dim]{held.seq:>5} {held.by:<5}[/] {safe(words)}{where}")
