"""Reads a struct's fields the way `docs/wire.md` lists them, and the page itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from turnlog.contract import MessageDelta, MessagePart

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wire.md"
_WORDS: dict[type[Any], str] = {
    inspect.StrType: "text",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.BoolType: "boolean",
    inspect.AnyType: "any JSON",
    inspect.DictType: "object",
    inspect.NoneType: "null",
}
_UNIONS = {
    frozenset(getattr(alias, "__args__", ())): name
    for name, alias in (("MessageDelta", MessageDelta), ("MessagePart", MessagePart))
}


def rows(cls: type[Any]) -> list[tuple[str, str]]:
    """(name, type) of every field: `maxTokens?`, `integer = 100`."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    found: list[tuple[str, str]] = [] if info.tag is None else [("kind", "text")]
    for field in info.fields:
        kind, name = field.type, field.encode_name
        if not field.required:
            name += "?"
            options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
            kept = tuple(option for option in options if not isinstance(option, inspect.NoneType))
            kind = inspect.UnionType(kept) if len(kept) > 1 else kept[0]
        default = "" if field.required else _default(field)
        found.append((name, _name(kind) + default))
    return found


def _default(field: inspect.Field) -> str:
    if field.default is not inspect.NODEFAULT:
        value = field.default
    else:
        value = field.default_factory() if callable(field.default_factory) else None
    if value is None or isinstance(value, msgspec.Struct):
        return ""
    return f" = {msgspec.json.encode(value).decode()}"


def _name(info: inspect.Type) -> str:
    match info:
        case inspect.ListType() | inspect.VarTupleType():
            return f"list of {_name(info.item_type)}"
        case inspect.TupleType():
            return f"[{', '.join(map(_name, info.item_types))}]"
        case inspect.LiteralType():
            return _either([f"`{value}`" for value in info.values])
        case inspect.StructType():
            return info.cls.__name__
        case inspect.UnionType():
            classes = frozenset(option.cls for option in info.types if isinstance(option, inspect.StructType))
            if classes in _UNIONS:
                return _UNIONS[classes]
            return _either([_name(option) for option in info.types])
        case _:
            return _WORDS[type(info)]


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


class Topic(NamedTuple):
    """One heading of the page and what stands under it."""

    prose: str
    table: list[tuple[str, str]]
    block: str | None


def read_page(text: str) -> dict[str, dict[str, Topic]]:
    """Section → heading → topic; what stands right under a section has the heading ''."""
    page: dict[str, dict[str, Topic]] = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        first, *rest = re.split(r"^### ", body, flags=re.MULTILINE)
        topics = {"": _topic(first)}
        for topic in rest:
            heading, _, content = topic.partition("\n")
            kind = heading.strip("` ")
            assert kind not in topics, f"docs/wire.md: {title}: {kind} appears twice"
            topics[kind] = _topic(content)
        page[title.strip()] = topics
    return page


def _topic(content: str) -> Topic:
    blocks = re.findall(r"^```json\n(.*?)^```$", content, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) <= 1, f"docs/wire.md: more than one JSON block under one heading: {blocks[1]}"
    table = re.findall(r"^\| `([^`]+)` \| (.*?) \| .+ \|$", content, flags=re.MULTILINE)
    prose = content.strip().partition("\n")[0]
    return Topic(prose, [(name, kind) for name, kind in table], blocks[0] if blocks else None)


_WIDTH = 108


def lay_out(value: Any, indent: int = 0, lead: int = 0) -> str:
    """JSON for people: as few lines as fit the width, order kept."""
    whole = json.dumps(value, ensure_ascii=False)
    if indent + lead + len(whole) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return whole
    if isinstance(value, dict):
        items = [(f"{json.dumps(key)}: ", item) for key, item in value.items()]
    else:
        items = [("", item) for item in value]
    pad = " " * (indent + 2)
    lines: list[str] = []
    open_line = False
    for index, (key, item) in enumerate(items):
        text = key + lay_out(item, indent + 2, len(key) + 1) + ("," if index < len(items) - 1 else "")
        if open_line and "\n" not in text and len(pad) + len(lines[-1]) + 1 + len(text) <= _WIDTH:
            lines[-1] += f" {text}"
        else:
            lines.append(text)
            open_line = "\n" not in text
    begin, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return "\n".join([begin, *(pad + line for line in lines), " " * indent + end])


def renew_blocks(blocks: dict[tuple[str, str], str]) -> None:
    """Put these texts in the place of the page's JSON blocks, by section and heading."""
    lines: list[str] = []
    place, inside = ("", ""), False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            place = (line[3:].strip(), "")
        elif line.startswith("### "):
            place = (place[0], line[4:].strip("` "))
        if inside and line == "```":
            lines.append(blocks[place])
            inside = False
        if not inside:
            lines.append(line)
        inside = inside or line == "```json"
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
