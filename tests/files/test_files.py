"""Files as input: what they are is read from their bytes, and the log keeps them."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from turnlog import Agent, AgentError, File, Input, open_store
from turnlog.contract import FileRefPart, ImagePart, ModelInputEntry, decode_text, mime_type_of
from turnlog.history import import_jsonl, named_blobs
from turnlog.testing import ScriptedModel

PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
    + _chunk(b"IEND", b"")
)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
        (b"GIF89a\x01\0", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (PDF, "application/pdf"),
        ("Grüße\n".encode(), "text/plain"),
        (b"caf\xe9, na\xefve", "text/plain"),
        ("\ufeffhello".encode("utf-16-le"), "text/plain"),
        (b"PK\x03\x04\x14\0", None),
        (b"\x7fELF\x02\x01\x01\0", None),
        (bytes(range(256)), None),
        (b"a\0b", None),
    ],
)
def test_the_bytes_say_what_a_file_is(data: bytes, kind: str | None) -> None:
    assert mime_type_of(data) == kind


def test_text_is_read_by_its_mark_as_utf_8_or_as_the_encoding_of_old_files() -> None:
    assert decode_text("\ufeffGrüße".encode()) == "Grüße"
    assert decode_text("\ufeffGrüße".encode("utf-16-be")) == "Grüße"
    assert decode_text("Grüße".encode("cp1252")) == "Grüße"


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        (
            "report.pdf",
            b"<html>Log in</html>",
            "is a text (text/plain), not the PDF that its name says",
        ),
        ("cat.png", PDF, "is a PDF (application/pdf), not the picture that its name says"),
        ("notes.txt", PNG, "is a picture (image/png), not the text that its name says"),
        ("tool.bin", b"\x7fELF\0\0", "is no picture (png, jpeg, gif, webp), PDF or text"),
        ("a.bmp", b"BM\0\0\0\0", "is no picture"),
        ("nothing.txt", b"", "is empty"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_refused(
    tmp_path: Path, name: str, data: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AgentError) as error:
        File(tmp_path / name).part()
    assert error.value.code == "InvalidMessage"
    assert why in error.value.message and name in error.value.message


def test_a_picture_under_the_name_of_another_kind_of_picture_is_sent_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(PNG)
    part = File(tmp_path / "cat.jpg").part()
    assert isinstance(part, ImagePart)
    assert (part.payload.mime_type, part.payload.name) == ("image/png", "cat.jpg")


def test_a_file_of_a_gigabyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge.pdf"
    with huge.open("wb") as file:
        file.truncate(1_000_000_000)
    with pytest.raises(AgentError, match=r"huge\.pdf has 1,000,000,000 bytes; the limit is 32,000,000"):
        File(huge).part()
    with pytest.raises(AgentError, match="the limit is 3:"):
        File("a.txt", data=b"four", max_bytes=3).part()
    with pytest.raises(AgentError, match="give the model a tool that reads it in pieces"):
        File.from_bytes(b"x" * 5_000_000, name="long.txt").part()


def test_what_is_no_file_is_named_and_nothing_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"there is no file .*gone\.pdf"):
        File(tmp_path / "gone.pdf").part()
    with pytest.raises(AgentError, match="is a folder; name a file"):
        File(tmp_path).part()
    with pytest.raises(AgentError, match="cannot be read"):
        File("a\0b").part()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AgentError, match="is a device or a pipe"):
        File(tmp_path / "pipe").part()


# ── in a run ──


def _agent(model: ScriptedModel, store: Any) -> Agent:
    return Agent(model, store=store)


@pytest.mark.spec("M-2")
async def test_the_log_keeps_the_bytes_by_hash_and_the_file_may_be_gone_at_the_next_run(
    tmp_path: Path,
) -> None:
    for name, data in (("cat.png", PNG), ("paper.pdf", PDF), ("notes.md", b"# Notes")):
        (tmp_path / name).write_bytes(data)
    store = open_store("memory:")
    model = ScriptedModel(["A cat.", "Still a cat."])
    agent = _agent(model, store)
    files = [File(tmp_path / name) for name in ("cat.png", "paper.pdf", "notes.md")]
    await agent.run(["Look:", *files], session="s")
    for file in files:
        os.unlink(file.path)
    await agent.run("Again?", session="s")

    said = next(e for e in await store.load("s") if isinstance(e, ModelInputEntry))
    held = [part for part in said.payload.message.parts if isinstance(part, ImagePart | FileRefPart)]
    assert len(held) == 3
    assert all((part.payload.url or "").startswith("blob:sha256-") and not part.payload.data for part in held)
    assert {await store.get_blob(name) for name in named_blobs(said)} == {PNG, PDF, b"# Notes"}

    parts = model.requests[-1].messages[0].parts
    assert isinstance(parts[1], ImagePart) and base64.b64decode(parts[1].payload.data or "") == PNG
    assert isinstance(parts[2], FileRefPart) and isinstance(parts[3], FileRefPart)
    assert base64.b64decode(parts[2].payload.data or "") == PDF
    assert (parts[3].payload.path, parts[3].payload.mime_type) == ("notes.md", "text/markdown")
    assert (await agent.session("s").replay()).identical


async def test_a_run_that_was_submitted_is_driven_when_the_file_has_changed_since(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("first")
    store = open_store("memory:")
    model = ScriptedModel(["Read."])
    agent = _agent(model, store)
    await agent.submit(["Read this", File(path)], session="s")
    path.write_text("second")
    await agent.resume("s")
    part = model.requests[0].messages[0].parts[1]
    assert isinstance(part, FileRefPart) and base64.b64decode(part.payload.data or "") == b"first"


async def test_files_stand_in_an_input_with_levels_of_detail(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    store = open_store("memory:")
    agent = _agent(ScriptedModel(["Ok."]), store)
    await agent.run(Input(["Read", File(tmp_path / "a.txt")], gist="a text to read"), session="s")
    said = next(e for e in await store.load("s") if isinstance(e, ModelInputEntry))
    assert [part.kind for part in said.payload.message.parts] == ["text", "file_ref"]
    assert said.payload.authored


async def test_a_bad_file_fails_the_call_and_leaves_no_session(tmp_path: Path) -> None:
    store = open_store("memory:")
    with pytest.raises(AgentError, match="there is no file"):
        await _agent(ScriptedModel(["Ok."]), store).run(["See", File(tmp_path / "no")], session="s")
    assert await store.tail("s") is None


async def test_a_file_weighs_in_the_context_as_what_the_provider_counts(tmp_path: Path) -> None:
    """A text of 40,000 bytes makes the estimate of a call grow by about as many bytes."""
    from turnlog.contract import ModelCallStartedEntry

    (tmp_path / "long.txt").write_text("word " * 8_000)
    store = open_store("memory:")
    agent = _agent(ScriptedModel(["Ok.", "Ok."]), store)
    await agent.run("Read", session="short")
    await agent.run(["Read", File(tmp_path / "long.txt")], session="long")
    estimates: list[int] = []
    for name in ("short", "long"):
        started = next(e for e in await store.load(name) if isinstance(e, ModelCallStartedEntry))
        estimates.append(started.payload.estimated_tokens or 0)
    assert 9_000 < estimates[1] - estimates[0] < 15_000


async def test_a_file_travels_with_an_export_and_is_gone_after_a_purge(tmp_path: Path) -> None:
    store = open_store("memory:")
    agent = _agent(ScriptedModel(["Read."]), store)
    await agent.run(["Read", File.from_bytes(PDF, name="paper.pdf")], session="s")
    said = next(e for e in await store.load("s") if isinstance(e, ModelInputEntry))
    (name,) = named_blobs(said)
    elsewhere = open_store("memory:")
    await import_jsonl(elsewhere, await agent.session("s").export())
    assert await elsewhere.get_blob(name) == PDF
    await agent.session("s").purge([said.id], by="ann")
    with pytest.raises(AgentError):
        await store.get_blob(name)
