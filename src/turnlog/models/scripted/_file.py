"""Scripts in files: ``scripted:answers.json``, ``answers.jsonl`` (a turn a line) or ``answers.toml``.

The document is a list of turns, or an object ``{turns, default?, loop?, modelId?, contextWindow?}``. A
turn is text or an object with the fields of :class:`Turn` in camelCase::

    {"turns": [
      {"toolCalls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]},
      {"error": {"code": "ModelOverloaded"}},
      "The sum is 3."
    ]}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec

from turnlog.contract import AgentError

from ._model import ScriptedModel, ScriptItem
from ._turn import Turn

_OPTIONS: dict[str, tuple[str, type]] = {
    "loop": ("loop", bool),
    "modelId": ("model_id", str),
    "contextWindow": ("context_window", int),
}


def load_script(path: str, **config: Any) -> ScriptedModel:
    """The model whose answers ``path`` holds. Keyword arguments win over the file's own settings."""
    turns, options = read_script(path)
    return ScriptedModel(turns, **{**options, **config})


def read_script(path: str) -> tuple[list[ScriptItem], dict[str, Any]]:
    """The turns and settings in the file; ``ConfigInvalid`` names the line or the field that is wrong."""
    plain = _parse(path)
    if isinstance(plain, list):
        plain = {"turns": cast("list[Any]", plain)}
    if not isinstance(plain, dict):
        _refuse(path, "expected a list of turns or an object with turns")
    document = cast("dict[str, Any]", plain)
    unknown = sorted(set(document) - {"turns", "default", *_OPTIONS})
    if unknown:
        _refuse(path, f"unknown field {unknown[0]!r}; fields are turns, default, {', '.join(_OPTIONS)}")
    turns = document.get("turns", [])
    if not isinstance(turns, list):
        _refuse(path, "turns: expected a list")
    options: dict[str, Any] = {}
    for field, (name, kind) in _OPTIONS.items():
        if field in document:
            if type(document[field]) is not kind:
                _refuse(path, f"{field}: expected {kind.__name__}, found {document[field]!r}")
            options[name] = document[field]
    if "default" in document:
        options["default"] = _turn(path, "default", document["default"])
    found = cast("list[Any]", turns)
    return [_turn(path, f"turns[{index}]", item) for index, item in enumerate(found)], options


def _parse(path: str) -> object:
    import tomllib  # seldom needed: every import of the models would pay for it

    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _refuse(path, f"cannot be read: {error}", error)
    try:
        match file.suffix:
            case ".toml":
                return tomllib.loads(text)
            case ".jsonl":
                return _parse_lines(path, text)
            case _:
                return json.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        _refuse(path, str(error), error)


def _parse_lines(path: str, text: str) -> list[object]:
    turns: list[object] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                turns.append(json.loads(line))
            except json.JSONDecodeError as error:
                _refuse(path, f"line {number}: {error}", error)
    return turns


def _turn(path: str, where: str, item: object) -> str | Turn:
    if isinstance(item, str):
        return item
    try:
        return msgspec.convert(item, Turn)
    except msgspec.ValidationError as error:
        _refuse(path, f"{where}: {error}", error)
    except AgentError as error:
        _refuse(path, f"{where}: {error.message}", error)


def _refuse(path: str, problem: str, cause: BaseException | None = None) -> NoReturn:
    raise AgentError("ConfigInvalid", f"script {path}: {problem}", cause=cause) from cause
