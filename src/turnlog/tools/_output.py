"""Structured output: the schema a model is given, and its answer checked against the type."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from turnlog.contract import JsonObject, JsonValue, parse_arguments

from ._schema import normalise, resolve_ref
from ._text import clean

if TYPE_CHECKING:
    from ._typed import Typed

WRAPPED = "value"
"""The field that carries an output which is no object: providers take objects alone."""

_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\r?\n(.*)\n\s*```\s*", re.DOTALL | re.IGNORECASE)


class CheckedOutput(NamedTuple):
    """``value`` counts when ``errors`` is empty; else they say everything that is wrong with it."""

    value: Any
    errors: list[str]

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def correction(self) -> str:
        """What the model is told, so that its next answer fits."""
        lines = "\n".join(f"- {error}" for error in self.errors)
        return (
            f"Your answer does not fit the required output:\n{lines}\n"
            "Answer again with one JSON value that fits the schema, and nothing else."
        )


def output_schema(type_: Any) -> JsonObject:
    """The JSON schema of an output type, always an object. Raises ``ConfigInvalid``."""
    schema = _compiled(type_).schema
    if _is_object(schema):
        return schema
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    whole: JsonObject = {
        "type": "object",
        "properties": {WRAPPED: inner},
        "required": [WRAPPED],
        "additionalProperties": False,
    }
    if "$defs" in schema:
        whole["$defs"] = schema["$defs"]
    return normalise(whole)


def validate_output(type_: Any, value: JsonValue) -> CheckedOutput:
    """A model's answer, as JSON text or as JSON data, turned into the type. Raises ``ConfigInvalid`` for a
    type that has no schema, and nothing for an answer that does not fit."""
    typed = _compiled(type_)
    if isinstance(value, str):
        parsed, problem = _parse(value)
        if problem is None:
            value = parsed
        elif _is_object(typed.schema):
            return CheckedOutput(None, [problem])
        else:
            return _bare(typed, value, problem)
    if not _is_object(typed.schema) and isinstance(value, dict) and set(value) == {WRAPPED}:  # pyright: ignore[reportUnknownArgumentType]
        found = _check(typed, value[WRAPPED])
        return found if found.ok else _either(found, _check(typed, value))
    return _check(typed, value)


def _bare(typed: Typed, text: str, problem: str) -> CheckedOutput:
    """Text that is no JSON may itself be the value, when the type is text."""
    found = _check(typed, text)
    return found if found.ok else CheckedOutput(None, [problem])


def _either(wrapped: CheckedOutput, bare: CheckedOutput) -> CheckedOutput:
    return bare if bare.ok else wrapped


def _check(typed: Typed, value: JsonValue) -> CheckedOutput:
    found, errors = typed.check(value)
    return CheckedOutput(found, [clean(error) for error in errors])


def _parse(text: str) -> tuple[JsonValue, str | None]:
    fenced = _FENCE.fullmatch(text)
    body = fenced.group(1) if fenced else text
    if not body.strip():
        return None, "the answer is empty; JSON was expected"
    # As strict as tool arguments are: the same reader, with the answer as one field of an object.
    parsed = parse_arguments(f'{{"{WRAPPED}":{body}\n}}')
    if parsed.arguments is None or set(parsed.arguments) != {WRAPPED}:
        # Asked again alone, so that positions in the message are those of the answer.
        problem = parse_arguments(body).error or parsed.error or "more than one value"
        return None, f"the answer is not JSON: {problem}"
    return parsed.arguments[WRAPPED], None


def _is_object(schema: JsonObject) -> bool:
    return resolve_ref(schema, schema).get("type") == "object"


def _compiled(type_: Any) -> Typed:
    try:
        return _cached(type_)
    except TypeError:  # a type that cannot be a key
        return _compile(type_)


@lru_cache(maxsize=64)
def _cached(type_: Any) -> Typed:
    return _compile(type_)


def _compile(type_: Any) -> Typed:
    from ._typed import compile_type

    return compile_type(f"output type {getattr(type_, '__name__', type_)!s}", type_)
