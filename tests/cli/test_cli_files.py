"""Files on the command line: handed to a run, attached in a chat, listed and written out."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shlex
from pathlib import Path

from cli.shell import Shell
from files.test_files import PDF, PNG
from models.google_wire import piece, sse
from turnlog.cli._files import pasted_files  # pyright: ignore[reportPrivateUsage]
from turnlog.testing import Loopback, LoopbackAnswer


def _files(folder: Path) -> None:
    (folder / "cat.png").write_bytes(PNG)
    (folder / "paper.pdf").write_bytes(PDF)
    (folder / "notes.txt").write_text("Remember the milk.")


def test_files_go_with_the_question_and_can_be_written_out_when_they_are_gone(shell: Shell) -> None:
    _files(shell.folder)
    given = ["-f", "cat.png", "-f", "paper.pdf", "--file", "notes.txt"]
    shell.ok("run", "-m", shell.script("A cat."), "-s", "s1", *given, "What is this?")
    for name in ("cat.png", "paper.pdf", "notes.txt"):
        os.unlink(shell.folder / name)
    shown = shell.ok("show", "s1").out
    assert "(cat.png, image/png)" in shown
    assert f"(paper.pdf, application/pdf, {len(PDF)} bytes)" in shown
    listed = shell.ok("files", "s1", "--json").lines
    assert [(one["name"], one["by"], one["size"]) for one in listed] == [
        ("cat.png", "user", len(PNG)),
        ("paper.pdf", "user", len(PDF)),
        ("notes.txt", "user", 18),
    ]
    saved = shell.ok("files", "s1", "--save", "out").out
    assert "1-cat.png" in saved
    assert (shell.folder / "out" / "1-cat.png").read_bytes() == PNG
    assert (shell.folder / "out" / "3-notes.txt").read_text() == "Remember the milk."
    again = shell("files", "s1", "--save", "out")
    assert again.code == 1
    assert "is there already; name another folder" in again.err
    exported = json.loads(shell.ok("export", "s1", "--format", "openai").out)
    assert [block["type"] for block in exported[0]["content"]] == ["text", "image_url", "file", "file"]


def test_a_file_from_standard_input(shell: Shell) -> None:
    done = shell("run", "-m", shell.script("Read."), "-s", "s1", "-f", "-", "Read this", stdin=PDF)
    assert done.code == 0, done.err
    assert shell.ok("files", "s1", "--json").lines[0]["mimeType"] == "application/pdf"
    twice = shell("run", "-m", shell.script("Read."), "-f", "-", "-", stdin="x")
    assert twice.code == 2
    assert "standard input can be read once" in twice.err


def test_a_file_that_cannot_be_sent_is_named_before_anything_is_written(shell: Shell) -> None:
    shell.write("fake.pdf", "<html>")
    for name, why in (
        ("fake.pdf", "not the PDF that its name says"),
        ("gone.png", "there is no file gone.png"),
        ("http://127.0.0.1:1/a.png", "127.0.0.1, which is not public; turnlog run --allow-private"),
    ):
        done = shell("run", "-m", shell.script("Read."), "-s", "s1", "-f", name, "Read")
        assert (done.code, why in done.err) == (1, True), done.err
    assert shell.ok("sessions", "--json").out == ""


def test_attach_sends_a_file_with_the_next_message(shell: Shell) -> None:
    _files(shell.folder)
    lines = "/attach cat.png\n/attach notes.txt\nWhat is this?\nAnd now?\n"
    done = shell.ok("chat", "-m", shell.script("A cat.", "Nothing."), "-s", "s1", stdin=lines)
    assert "attached cat.png, image/png" in done.err
    listed = shell.ok("files", "s1", "--json").lines
    assert [one["name"] for one in listed] == ["cat.png", "notes.txt"]
    assert len({one["seq"] for one in listed}) == 1


def test_a_pasted_path_is_a_file_only_when_it_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "my cat.png"
    path.write_bytes(PNG)
    assert pasted_files(shlex.quote(str(path))) == [str(path)]
    assert pasted_files(str(path).replace(" ", "\\ ")) == [str(path)]
    assert pasted_files(path.as_uri()) == [str(path)]
    assert pasted_files(f"{path.as_uri()} {path.as_uri()}") == [str(path)] * 2
    assert pasted_files(f"look at {shlex.quote(str(path))}") == []
    assert pasted_files("/help") == []
    assert pasted_files("it's") == []
    assert pasted_files("") == []


def test_a_path_that_is_pasted_into_a_chat_is_attached(shell: Shell) -> None:
    _files(shell.folder)
    with shell.terminal("chat", "-m", shell.script("A cat."), "-s", "s1") as terminal:
        terminal.say(str(shell.folder / "cat.png"))
        terminal.until("attached cat.png")
        terminal.say("/attach gone.png")
        terminal.until("there is no file gone.png")
        terminal.say("What is it?")
        terminal.until("A cat.")
        terminal.until("> ")
        terminal.press_ctrl_d()
        terminal.wait()
    assert [one["name"] for one in shell.ok("files", "s1", "--json").lines] == ["cat.png"]


def test_a_line_of_map_may_name_files(shell: Shell) -> None:
    _files(shell.folder)
    shell.write("in.jsonl", '{"input": "See", "files": ["cat.png"]}\n')
    shell.ok("map", "-m", shell.script("A cat."), "--sessions", "m", "in.jsonl")
    session = shell.ok("sessions", "--json").lines[0]["sessionId"]
    assert shell.ok("files", session, "--json").lines[0]["name"] == "cat.png"


async def test_a_picture_in_an_answer_is_told_of_and_written_out(shell: Shell) -> None:
    data = {"mimeType": "image/png", "data": base64.b64encode(PNG).decode()}
    body = sse(piece({"text": "Here."}), piece({"inlineData": data}, finish="STOP"))
    async with Loopback(LoopbackAnswer.sse(body)) as server:
        options = ["-m", "google:gemini-3-pro", "--base-url", server.url, "-s", "s1"]
        done = await asyncio.to_thread(shell, "run", *options, "Draw", env={"GEMINI_API_KEY": "k"})
    assert done.code == 0, done.err
    assert f"the answer holds a picture (image/png, {len(PNG)} bytes)" in done.err
    assert "turnlog files s1 --save FOLDER" in done.err
    assert "(image/png, made by the model)" in shell.ok("show", "s1").out
    shell.ok("files", "s1", "--save", "out")
    assert (shell.folder / "out" / "1-picture.png").read_bytes() == PNG
