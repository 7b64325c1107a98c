"""The rules of protocols whose turns are made of blocks: Anthropic's Messages and Bedrock's Converse."""

from __future__ import annotations

import re
from typing import Any

from turnlog.contract import JsonObject

from ._request_findings import IMAGE_TYPES, Findings, as_object, objects

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DOCUMENT = re.compile(r"[A-Za-z0-9 ()\[\]-]{1,200}")
_THOUGHTS = ("thinking", "redacted_thinking")


def anthropic_rules(body: JsonObject, found: Findings, model: str | None) -> None:
    found.need(body.get("model") or body.get("anthropic_version"), "no model is named")
    limit = body.get("max_tokens")
    found.need(isinstance(limit, int) and limit > 0, f"max_tokens is {limit!r}")
    turns = [
        (turn.get("role"), _anthropic_content(turn.get("content"))) for turn in objects(body.get("messages"))
    ]
    paused = bool(turns) and turns[-1][0] == "assistant" and _runs_there(turns[-1][1])
    roles = [role for role, _ in turns]
    found.alternates(roles[:-1] if paused else roles, ("user", "assistant"), "messages")
    for at, (role, blocks) in enumerate(turns):
        place = f"messages[{at}]"
        found.need(blocks, f"{place} has no content")
        texts = [block.get("text") for block in _of(blocks, "text")]
        says_something = any(isinstance(text, str) and text.strip() for text in texts)
        for block in blocks:
            # An answer's white space is taken beside its other text, though not alone.
            if role != "assistant" or not says_something or block.get("type") != "text":
                _anthropic_block(block, str(role), found, place)
            else:
                found.need(block.get("text"), f"a text in {place} is empty")
        if role == "assistant":
            after = turns[at + 1][1] if at + 1 < len(turns) else []
            _anthropic_answered(blocks, after, found, place)
            found.need(not blocks or blocks[-1].get("type") not in _THOUGHTS, f"{place} ends with thinking")
        elif not at or turns[at - 1][0] != "assistant":
            found.need(not _of(blocks, "tool_result"), f"{place} has results that answer no call")
    whole = [block for _, blocks in turns for block in blocks]
    found.unique([block.get("id") for block in _of(whole, "tool_use")], "ids of tool_use blocks")
    _anthropic_thinking(body, turns, found)
    _anthropic_head(body, whole, found)


def _anthropic_content(content: Any) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _runs_there(blocks: list[JsonObject]) -> bool:
    """Whether a turn stopped inside work that the provider does itself and wants to continue."""
    return bool(blocks) and blocks[-1].get("type") not in ("text", "tool_use", *_THOUGHTS)


def _of(blocks: list[JsonObject], kind: str) -> list[JsonObject]:
    return [block for block in blocks if block.get("type") == kind]


def _anthropic_block(block: JsonObject, role: str, found: Findings, place: str) -> None:
    match block.get("type"), role:
        case "text", _:
            found.text(block.get("text"), f"a text in {place}")
        case "image", "user":
            _anthropic_image(as_object(block.get("source")), found, place)
        case "document", "user":
            source = as_object(block.get("source"))
            kind = source.get("media_type")
            found.need(kind == "application/pdf", f"a document in {place} is of type {kind!r}")
            found.bytes_of(source.get("data"), f"a document in {place}")
        case "tool_use", "assistant":
            found.name(block.get("id"), f"the id of a call in {place}", _ID)
            found.name(block.get("name"), f"the name of a call in {place}")
            found.need(isinstance(block.get("input"), dict), f"the input of a call in {place} is no object")
        case "tool_result", "user":
            _anthropic_result(block, found, place)
        case "thinking", "assistant":
            found.need(isinstance(block.get("thinking"), str), f"{place} has thinking without its text")
            found.need(block.get("signature"), f"{place} has thinking without a signature")
            found.need("cache_control" not in block, f"{place} has a cache mark on thinking")
        case "redacted_thinking", "assistant":
            found.need(block.get("data"), f"{place} has redacted thinking without data")
        case (
            "text" | "image" | "document" | "tool_use" | "tool_result" | "thinking" | "redacted_thinking"
        ) as kind, _:
            found.need(False, f"{place}, the {role}'s, holds a {kind} block")
        case kind, _:
            found.need(isinstance(kind, str), f"{place} has a block without a type")


def _anthropic_image(source: JsonObject, found: Findings, place: str) -> None:
    match source.get("type"):
        case "base64":
            kind = source.get("media_type")
            found.need(kind in IMAGE_TYPES, f"an image in {place} is of type {kind!r}")
            found.bytes_of(source.get("data"), f"an image in {place}")
        case "url":
            found.address(source.get("url"), f"an image in {place}")
        case kind:
            found.need(kind == "file", f"an image in {place} has the source {kind!r}")


def _anthropic_result(block: JsonObject, found: Findings, place: str) -> None:
    found.name(block.get("tool_use_id"), f"the tool_use_id of a result in {place}", _ID)
    content = block.get("content")
    if block.get("is_error"):
        found.need(content, f"a failed result in {place} says nothing")
    for inner in objects(content):
        found.need(
            inner.get("type") in ("text", "image", "document"),
            f"a result in {place} holds a {inner.get('type')} block",
        )
        _anthropic_block(inner, "user", found, f"a result of {place}")


def _anthropic_answered(
    blocks: list[JsonObject], after: list[JsonObject], found: Findings, place: str
) -> None:
    """Every call is answered in the turn right after it, before anything else is said there."""
    calls = [block.get("id") for block in _of(blocks, "tool_use")]
    answers = [block.get("tool_use_id") for block in _of(after, "tool_result")]
    found.need(
        sorted(map(str, calls)) == sorted(map(str, answers)), f"{place} calls {calls}, answered are {answers}"
    )
    first = [block.get("type") for block in after[: len(answers)]]
    found.need(set(first) <= {"tool_result"}, f"after {place} something comes before the results")


def _anthropic_thinking(body: JsonObject, turns: list[tuple[Any, list[JsonObject]]], found: Findings) -> None:
    """With thinking switched on, work that continues must have begun with it."""
    thinking = as_object(body.get("thinking")).get("type")
    if thinking != "enabled" or not turns or not _of(turns[-1][1], "tool_result"):
        return
    began = turns[-2][1] if len(turns) > 1 else []
    for at in range(len(turns) - 2, 0, -2):
        began = turns[at][1]
        if not _of(turns[at - 1][1], "tool_result"):
            break
    kind = began[0].get("type") if began else None
    found.need(kind in _THOUGHTS, f"thinking is enabled, but the work in hand began with {kind!r}")


def _anthropic_head(body: JsonObject, whole: list[JsonObject], found: Findings) -> None:
    tools = objects(body.get("tools"))
    found.unique([tool.get("name") for tool in tools], "names of tools")
    for tool in tools:
        found.name(tool.get("name"), "the name of a tool")
        if tool.get("type") in (None, "custom"):
            found.object_schema(tool.get("input_schema"), f"the schema of {tool.get('name')}")
    found.need(
        tools or not (_of(whole, "tool_use") or _of(whole, "tool_result")), "calls are there, but no tools"
    )
    choice = as_object(body.get("tool_choice"))
    found.need(tools or not choice, "a choice is made of no tools")
    if choice.get("type") == "tool":
        names = [tool.get("name") for tool in tools]
        found.need(choice.get("name") in names, f"no tool is named {choice.get('name')!r}")
    system = _anthropic_content(body.get("system", []))
    for block in system:
        found.text(block.get("text"), "a text of system")
    results = [inner for block in whole for inner in objects(block.get("content"))]
    marks = [one for one in (*tools, *system, *whole, *results) if "cache_control" in one]
    found.need(len(marks) <= 4, f"there are {len(marks)} cache marks")


# ── Converse ──


def converse_rules(body: JsonObject, found: Findings, model: str | None) -> None:
    turns = objects(body.get("messages"))
    roles = [turn.get("role") for turn in turns]
    found.alternates(roles, ("user", "assistant"), "messages")
    calls_seen = False
    for at, turn in enumerate(turns):
        place, blocks = f"messages[{at}]", objects(turn.get("content"))
        found.need(blocks, f"{place} has no content")
        found.need(not blocks or "cachePoint" not in blocks[0], f"{place} begins with a cache point")
        for block in blocks:
            found.need(len(block) == 1, f"a block in {place} holds {sorted(block)}")
            _converse_block(block, str(roles[at]), found, place)
        calls_seen = calls_seen or any("toolUse" in block or "toolResult" in block for block in blocks)
        if roles[at] == "assistant":
            _converse_answered(blocks, turns[at + 1] if at + 1 < len(turns) else {}, found, place)
        elif not at:
            found.need(not any("toolResult" in block for block in blocks), f"{place} answers no call")
    calls = [
        as_object(b["toolUse"]) for turn in turns for b in objects(turn.get("content")) if "toolUse" in b
    ]
    found.unique([call.get("toolUseId") for call in calls], "ids of calls")
    for block in objects(body.get("system")):
        if "cachePoint" not in block:
            found.text(block.get("text"), "a text of system")
    _converse_tools(as_object(body.get("toolConfig")), calls_seen, found)


def _converse_block(block: JsonObject, role: str, found: Findings, place: str) -> None:
    kind = next(iter(block), "")
    value = as_object(block.get(kind))
    match kind, role:
        case "text", _:
            found.text(block["text"], f"a text in {place}")
        case "image", "user":
            form = value.get("format")
            found.need(f"image/{form}" in IMAGE_TYPES, f"an image in {place} has the format {form!r}")
            source = as_object(value.get("source"))
            if "s3Location" not in source:
                found.bytes_of(source.get("bytes"), f"an image in {place}")
        case "document", "user":
            found.need(value.get("format") == "pdf", f"a document in {place} is no PDF")
            found.name(value.get("name"), f"the name of a document in {place}", _DOCUMENT)
            found.bytes_of(as_object(value.get("source")).get("bytes"), f"a document in {place}")
        case "toolUse", "assistant":
            found.name(value.get("toolUseId"), f"the id of a call in {place}", _ID)
            found.name(value.get("name"), f"the name of a call in {place}")
            found.need(isinstance(value.get("input"), dict), f"the input of a call in {place} is no object")
        case "toolResult", "user":
            found.name(value.get("toolUseId"), f"the id of a result in {place}", _ID)
            found.need(
                value.get("status", "success") in ("success", "error"), f"a result in {place} has a status"
            )
            found.need(objects(value.get("content")), f"a result in {place} holds nothing")
            for inner in objects(value.get("content")):
                known = set(inner) <= {"text", "json", "image", "document", "video"}
                if found.need(known and len(inner) == 1, f"a result in {place} holds {sorted(inner)}"):
                    _converse_block(inner, "user", found, f"a result of {place}")
        case "reasoningContent", "assistant":
            text = as_object(value.get("reasoningText"))
            signed = text.get("text") is not None and text.get("signature")
            found.need(signed or value.get("redactedContent"), f"{place} has thinking without a signature")
        case "image" | "document" | "toolUse" | "toolResult" | "reasoningContent", _:
            found.need(False, f"{place}, the {role}'s, holds {kind}")
        case _:
            found.need(kind, f"{place} has an empty block")


def _converse_answered(blocks: list[JsonObject], after: JsonObject, found: Findings, place: str) -> None:
    calls = [as_object(block["toolUse"]).get("toolUseId") for block in blocks if "toolUse" in block]
    following = objects(after.get("content"))
    answers = [as_object(b["toolResult"]).get("toolUseId") for b in following if "toolResult" in b]
    found.need(
        sorted(map(str, calls)) == sorted(map(str, answers)), f"{place} calls {calls}, answered are {answers}"
    )
    thoughts = [at for at, block in enumerate(blocks) if "reasoningContent" in block]
    found.need(not thoughts or thoughts[-1] < len(blocks) - 1, f"{place} ends with thinking")


def _converse_tools(config: JsonObject, calls_seen: bool, found: Findings) -> None:
    tools = [as_object(tool["toolSpec"]) for tool in objects(config.get("tools")) if "toolSpec" in tool]
    found.need(objects(config.get("tools")) or not (config or calls_seen), "calls are there, but no tools")
    found.unique([tool.get("name") for tool in tools], "names of tools")
    for tool in tools:
        found.name(tool.get("name"), "the name of a tool")
        schema = as_object(tool.get("inputSchema")).get("json")
        found.object_schema(schema, f"the schema of {tool.get('name')}")
        if "description" in tool:
            found.text(tool["description"], f"the description of {tool.get('name')}")
    chosen = as_object(as_object(config.get("toolChoice")).get("tool")).get("name")
    names = [tool.get("name") for tool in tools]
    found.need(chosen is None or chosen in names, f"no tool is named {chosen!r}")
