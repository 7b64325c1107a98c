"""The rules of generateContent."""

from __future__ import annotations

import re
from typing import Any

from turnlog.contract import JsonObject

from ._request_findings import Findings, as_object, objects

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
_SIGNATURE = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_UNSIGNED = re.compile(r"gemini-[12]\b|gemma|learnlm")
_KINDS = frozenset(
    {
        "text",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    }
)
_BESIDE = frozenset({"thought", "thoughtSignature", "videoMetadata", "mediaResolution", "partMetadata"})
_MEDIA = re.compile(r"(image/(png|jpeg|webp|heic|heif)|application/pdf|text/plain|audio/.+|video/.+)")
_BODY = frozenset(
    {
        "cachedContent",
        "contents",
        "generationConfig",
        "labels",
        "model",
        "safetySettings",
        "serviceTier",
        "systemInstruction",
        "toolConfig",
        "tools",
    }
)
_SCHEMA = frozenset(
    {
        "$anchor",
        "$defs",
        "$id",
        "$ref",
        "additionalProperties",
        "anyOf",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "oneOf",
        "prefixItems",
        "properties",
        "propertyOrdering",
        "required",
        "title",
        "type",
    }
)


def gemini_rules(body: JsonObject, found: Findings, model: str | None) -> None:
    found.known_keys(body, _BODY, "the body")
    contents = objects(body.get("contents"))
    found.alternates([content.get("role") for content in contents], ("user", "model"), "contents")
    signed = model is not None and _UNSIGNED.search(model) is None
    before: list[JsonObject] = []
    for at, content in enumerate(contents):
        place, parts = f"contents[{at}]", objects(content.get("parts"))
        found.need(parts, f"{place} has no parts")
        for part in parts:
            _part(part, str(content.get("role")), found, place)
        calls = [part for part in parts if "functionCall" in part]
        _answered(before, parts, found, place)
        if calls and signed:
            found.need(calls[0].get("thoughtSignature"), f"the first call of {place} carries no signature")
        before = calls
    found.need(not before, "the last content calls functions that nothing answers")
    for part in objects(as_object(body.get("systemInstruction")).get("parts")):
        found.text(part.get("text"), "a text of systemInstruction")
    _tools(body, found)


def _part(part: JsonObject, role: str, found: Findings, place: str) -> None:
    kinds = [key for key in part if key not in _BESIDE]
    found.need(set(kinds) <= _KINDS, f"{place} has a part with {kinds}")
    found.need(len(kinds) == 1 or part.get("thoughtSignature"), f"a part of {place} holds {kinds}")
    if "thoughtSignature" in part:
        found.name(part["thoughtSignature"], f"a signature in {place}", _SIGNATURE)
        found.need(role == "model", f"{place}, the user's, carries a signature")
    found.need("thought" not in part or role == "model", f"{place}, the user's, carries a thought")
    match kinds:
        case ["text"]:
            if not part.get("thoughtSignature"):
                found.need(part["text"], f"a text in {place} is empty")
        case ["inlineData"]:
            _media(as_object(part["inlineData"]), found, place)
        case ["fileData"]:
            found.need(as_object(part["fileData"]).get("fileUri"), f"a file in {place} has no address")
        case ["functionCall"]:
            call = as_object(part["functionCall"])
            found.need(role == "model", f"{place}, the user's, calls a function")
            found.name(call.get("name"), f"the name of a call in {place}", _NAME)
            found.need(isinstance(call.get("args", {}), dict), f"the args of a call in {place} are no object")
        case ["functionResponse"]:
            response = as_object(part["functionResponse"])
            found.need(role == "user", f"{place}, the model's, answers a call")
            found.need(isinstance(response.get("response"), dict), f"a response in {place} is no object")
            for inner in objects(response.get("parts")):
                _media(as_object(inner.get("inlineData")), found, f"a response of {place}")
        case _:
            found.need(role == "model" or not kinds, f"{place}, the user's, holds {kinds}")


def _media(blob: JsonObject, found: Findings, place: str) -> None:
    found.name(blob.get("mimeType"), f"the type of data in {place}", _MEDIA)
    found.bytes_of(blob.get("data"), f"data in {place}")


def _answered(calls: list[JsonObject], parts: list[JsonObject], found: Findings, place: str) -> None:
    """As many responses as there were calls right before, in their order, ahead of anything else."""
    asked = [_named(as_object(call["functionCall"])) for call in calls]
    responses = [part for part in parts if "functionResponse" in part]
    given = [_named(as_object(part["functionResponse"])) for part in responses]
    found.need(asked == given, f"{place} answers {given}, called were {asked}")
    found.need(parts[: len(responses)] == responses, f"in {place} something comes before the responses")


def _named(call: JsonObject) -> tuple[Any, Any]:
    return call.get("name"), call.get("id")


def _tools(body: JsonObject, found: Findings) -> None:
    declared = [
        one for tool in objects(body.get("tools")) for one in objects(tool.get("functionDeclarations"))
    ]
    names = [function.get("name") for function in declared]
    found.unique(names, "names of functions")
    for function in declared:
        name = function.get("name")
        found.name(name, "the name of a function", _NAME)
        found.text(function.get("description"), f"the description of {name}")
        found.need(
            not {"parameters", "parametersJsonSchema"} <= set(function),
            f"{name} describes its parameters twice",
        )
        if "parametersJsonSchema" in function:
            found.object_schema(function["parametersJsonSchema"], f"the schema of {name}")
            _schema(function["parametersJsonSchema"], found, f"the schema of {name}")
    calling = as_object(as_object(body.get("toolConfig")).get("functionCallingConfig"))
    allowed: list[Any] = calling.get("allowedFunctionNames") or []
    found.need(
        not allowed or calling.get("mode") in ("ANY", "VALIDATED"),
        "functions are chosen in a mode that cannot",
    )
    found.need(set(allowed) <= set(names), f"chosen are {allowed}, which are not all declared")
    found.need(declared or not calling.get("mode"), "a mode of calling is set, but no function is declared")
    cached = (
        set(body) & {"systemInstruction", "tools", "toolConfig"} if body.get("cachedContent") else set[str]()
    )
    found.need(not cached, f"beside cachedContent stand {sorted(cached)}")


def _schema(schema: Any, found: Findings, place: str) -> None:
    known = as_object(schema)
    found.known_keys(known, _SCHEMA, place)
    if "$ref" in known:
        beside = [key for key in known if not key.startswith("$")]
        found.need(not beside, f"{place} has {beside} beside a reference")
    for name in ("properties", "$defs"):
        for inner in as_object(known.get(name)).values():
            _schema(inner, found, place)
    for name in ("anyOf", "oneOf", "prefixItems"):
        for inner in objects(known.get(name)):
            _schema(inner, found, place)
    for name in ("items", "additionalProperties"):
        if isinstance(known.get(name), dict):
            _schema(known[name], found, place)
