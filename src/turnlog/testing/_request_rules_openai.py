"""The rules of Chat Completions and of Responses."""

from __future__ import annotations

import re
from typing import Any

from turnlog.contract import JsonObject

from ._request_findings import Findings, as_object, objects

_CALL_ID = re.compile(r"[\x21-\x7e]{1,40}")
_RESPONSES_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MESSAGE_KEYS: dict[str, frozenset[str]] = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    "assistant": frozenset(
        {
            "role",
            "content",
            "name",
            "refusal",
            "audio",
            "tool_calls",
            "reasoning_content",
            "reasoning",
            "reasoning_details",
        }
    ),
    "tool": frozenset({"role", "content", "tool_call_id"}),
}


def chat_rules(body: JsonObject, found: Findings, model: str | None) -> None:
    found.need(body.get("model"), "no model is named")
    messages = objects(body.get("messages"))
    found.need(messages, "there are no messages")
    at = 0
    while at < len(messages):
        message, place = messages[at], f"messages[{at}]"
        role = message.get("role")
        at += 1
        if role not in _MESSAGE_KEYS:
            found.need(False, f"{place} has the role {role!r}")
            continue
        found.known_keys(message, _MESSAGE_KEYS[str(role)], place)
        match role:
            case "assistant":
                at = _chat_answer(message, messages, at, found, place)
            case "tool":
                found.need(False, f"{place} is a result that answers no call right before it")
            case "user":
                _chat_content(message.get("content"), found, place, images=True)
            case _:
                _chat_content(message.get("content"), found, place, images=False)
    functions = [as_object(tool.get("function")) for tool in objects(body.get("tools"))]
    found.need(
        all(tool.get("type") == "function" for tool in objects(body.get("tools"))), "a tool has no type"
    )
    _functions(functions, body, found)
    chosen = as_object(as_object(body.get("tool_choice")).get("function")).get("name")
    found.need(
        chosen is None or chosen in [one.get("name") for one in functions], f"no tool is named {chosen!r}"
    )
    found.need(len(objects_or_texts(body.get("stop"))) <= 4, "there are more than four stop sequences")


def _chat_answer(
    message: JsonObject, messages: list[JsonObject], at: int, found: Findings, place: str
) -> int:
    """Look at an answer and the results of its calls; give the place after them."""
    calls = objects(message.get("tool_calls"))
    if message.get("content") is not None:
        _chat_content(message.get("content"), found, place, images=False)
    else:
        found.need(calls, f"{place} has neither content nor calls")
    found.need("tool_calls" not in message or calls, f"{place} has an empty list of calls")
    ids: list[Any] = []
    for call in calls:
        function = as_object(call.get("function"))
        ids.append(call.get("id"))
        found.name(call.get("id"), f"the id of a call in {place}", _CALL_ID)
        found.need(call.get("type") == "function", f"a call in {place} has the type {call.get('type')!r}")
        found.name(function.get("name"), f"the name of a call in {place}")
        found.arguments(function.get("arguments"), f"the arguments of a call in {place}")
    found.unique(ids, f"ids of calls in {place}")
    open_ids = list(ids)
    while at < len(messages) and messages[at].get("role") == "tool":
        result, where = messages[at], f"messages[{at}]"
        found.known_keys(result, _MESSAGE_KEYS["tool"], where)
        answered = result.get("tool_call_id")
        if found.need(answered in open_ids, f"{where} answers {answered!r}, which is no open call"):
            open_ids.remove(answered)
        content = result.get("content")
        texts = all(part.get("type") == "text" for part in objects(content))
        found.need(isinstance(content, str) or (objects(content) and texts), f"{where} holds more than text")
        at += 1
    found.need(not open_ids, f"calls of {place} have no result right after it: {open_ids}")
    return at


def _chat_content(content: Any, found: Findings, place: str, *, images: bool) -> None:
    if isinstance(content, str):
        found.text(content, place)
        return
    parts = objects(content)
    found.need(parts, f"{place} has no content")
    for part in parts:
        match part.get("type"):
            case "text":
                found.text(part.get("text"), f"a text in {place}")
            case "image_url" if images:
                found.address(as_object(part.get("image_url")).get("url"), f"an image in {place}")
            case "file" if images:
                _file_data(as_object(part.get("file")), found, place)
            case kind:
                found.need(False, f"{place} holds a part of type {kind!r}")


def _file_data(file: JsonObject, found: Findings, place: str) -> None:
    found.need(isinstance(file.get("filename"), str), f"a file in {place} has no name")
    data = str(file.get("file_data"))
    found.need(data.startswith("data:application/pdf;base64,"), f"a file in {place} is no PDF")


def _functions(functions: list[JsonObject], body: JsonObject, found: Findings) -> None:
    found.need("tools" not in body or body["tools"], "the list of tools is empty")
    found.unique([function.get("name") for function in functions], "names of tools")
    for function in functions:
        found.name(function.get("name"), "the name of a tool")
        if "parameters" in function:
            found.object_schema(function["parameters"], f"the schema of {function.get('name')}")
        if function.get("strict"):
            _strict(function.get("parameters"), found, f"the strict schema of {function.get('name')}")


def _strict(schema: Any, found: Findings, place: str) -> None:
    known = as_object(schema)
    if known.get("type") == "object":
        found.need(known.get("additionalProperties") is False, f"{place} leaves an object open")
        names = set(as_object(known.get("properties")))
        found.need(set(known.get("required", [])) == names, f"{place} has optional properties")
    for value in known.values():
        for inner in objects(value) if isinstance(value, list) else [as_object(value)]:
            if inner:
                _strict(inner, found, place)


def objects_or_texts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]  # pyright: ignore[reportUnknownVariableType]


# ── Responses ──


def responses_rules(body: JsonObject, found: Findings, model: str | None) -> None:
    found.need(body.get("model"), "no model is named")
    given = body.get("input")
    if isinstance(given, str):
        found.text(given, "input")
    items = objects(given)
    found.need(items or isinstance(given, str) or body.get("previous_response_id"), "there is no input")
    calls: list[Any] = []
    answered: list[Any] = []
    for at, item in enumerate(items):
        place, kind = f"input[{at}]", item.get("type", "message")
        match kind:
            case "message":
                _responses_message(item, found, place)
            case "function_call":
                calls.append(item.get("call_id"))
                found.name(item.get("call_id"), f"the call_id of {place}", _RESPONSES_ID)
                found.name(item.get("name"), f"the name of {place}")
                found.arguments(item.get("arguments"), f"the arguments of {place}")
                _item_id(item, "fc_", found, place)
            case "function_call_output":
                answered.append(item.get("call_id"))
                known = item.get("call_id") in calls
                found.need(known, f"{place} answers {item.get('call_id')!r}, which no call before it has")
                _responses_output(item.get("output"), found, place)
            case "reasoning":
                _responses_reasoning(item, items[at + 1 :], body, found, place)
            case _:
                found.need(isinstance(kind, str), f"{place} has no type")
    found.unique(calls, "call_ids")
    found.unique(answered, "call_ids of outputs")
    missing = [call for call in calls if call not in answered]
    found.need(not missing, f"calls without an output: {missing}")
    functions = [tool for tool in objects(body.get("tools")) if tool.get("type") == "function"]
    _functions(functions, body, found)
    choice = as_object(body.get("tool_choice"))
    if choice.get("type") == "function":
        names = [one.get("name") for one in functions]
        found.need(choice.get("name") in names, f"no tool is named {choice.get('name')!r}")


def _responses_message(item: JsonObject, found: Findings, place: str) -> None:
    role, content = item.get("role"), item.get("content")
    if not found.need(role in ("user", "assistant", "system", "developer"), f"{place} has the role {role!r}"):
        return
    _item_id(item, "msg_", found, place)
    if isinstance(content, str):
        found.text(content, place)
        return
    found.need(objects(content), f"{place} has no content")
    for part in objects(content):
        match part.get("type"), role:
            case "output_text", "assistant":
                found.text(part.get("text"), f"a text in {place}")
            case "refusal", "assistant":
                found.text(part.get("refusal"), f"a refusal in {place}")
            case "input_text", "user" | "system" | "developer":
                found.text(part.get("text"), f"a text in {place}")
            case "input_image", "user":
                if "file_id" not in part:
                    found.address(part.get("image_url"), f"an image in {place}")
            case "input_file", "user":
                _file_data(part, found, place)
            case kind, _:
                found.need(False, f"{place}, a {role}'s, holds a part of type {kind!r}")


def _responses_output(output: Any, found: Findings, place: str) -> None:
    if isinstance(output, str):
        return
    found.need(objects(output), f"{place} has no output")
    for part in objects(output):
        match part.get("type"):
            case "input_text":
                found.text(part.get("text"), f"a text in {place}")
            case "input_image":
                found.address(part.get("image_url"), f"an image in {place}")
            case kind:
                found.need(kind == "input_file", f"{place} holds a part of type {kind!r}")


def _responses_reasoning(
    item: JsonObject, after: list[JsonObject], body: JsonObject, found: Findings, place: str
) -> None:
    found.need(isinstance(item.get("summary"), list), f"{place} is reasoning without a summary")
    _item_id(item, "rs_", found, place)
    following = after[0] if after else {}
    made = following.get("role") == "assistant" or "role" not in following
    found.need(
        following and made and following.get("type") != "function_call_output",
        f"{place} is reasoning without what followed it",
    )
    if body.get("store") is False:
        found.need(item.get("encrypted_content"), f"{place} is reasoning that is stored nowhere")


def _item_id(item: JsonObject, prefix: str, found: Findings, place: str) -> None:
    """An id of an item must be one that the API gave."""
    if item.get("id") is not None:
        given = str(item["id"])
        found.need(
            given.startswith(prefix) and len(given) <= 64, f"{place} has the id {given!r}, not {prefix}…"
        )
