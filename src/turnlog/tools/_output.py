"""Structured output: the schema a model is given, its answer checked against the type, and what has come of
it while it is still being written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from turnlog.contract import JsonObject, JsonValue, parse_arguments

from ._answer import ToolError, clean
from ._schema import normalise, resolve_ref

if TYPE_CHECKING:
    from ._typed import Typed

T = TypeVar("T")

WRAPPED = "value"
"""The field that carries an output which is no object: providers take objects alone."""

_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\r?\n(.*)\n\s*```\s*", re.DOTALL | re.IGNORECASE)
_FENCE_START = re.compile(r"\s*```(?:json)?[ \t]*\r?\n", re.IGNORECASE)


@dataclass(frozen=True)
class Problems:
    """Everything that is wrong with an answer, one line each."""

    errors: tuple[str, ...]

    @property
    def correction(self) -> str:
        """What the model is told, so that its next answer fits."""
        return self.told("Answer again with one JSON value that fits the schema, and nothing else.")

    def told(self, again: str) -> str:
        """The same, with other words for what to do."""
        lines = "\n".join(f"- {error}" for error in self.errors)
        return f"Your answer does not fit the required output:\n{lines}\n{again}"


Check: TypeAlias = "Callable[[T], str | Awaitable[str | None] | None]"


class OutputType(Generic[T]):
    """A type that a model's answer must have: a pydantic model, msgspec struct, dataclass, TypedDict, union,
    list, or a plain type.

    ``check`` may look at a value that fits the type: it returns what is wrong with it in words for the model,
    or raises ``ValueError`` or ``ToolError`` with them; None when it is good. It may be async. Raises
    ``ConfigInvalid`` for a type that has no JSON schema, naming the field.
    """

    @overload
    def __init__(self, type_: type[T], *, check: Check[T] | None = None) -> None: ...
    @overload
    def __init__(self: OutputType[Any], type_: Any, *, check: Check[Any] | None = None) -> None: ...
    def __init__(self, type_: Any, *, check: Check[Any] | None = None) -> None:
        self.type = type_
        self.name: str = getattr(type_, "__name__", None) or str(type_)
        self._check = check
        self._typed = _compiled(type_, self.name)
        self._is_object = _is_object(self._typed.schema)
        self.json_schema: JsonObject = self._typed.schema if self._is_object else _wrapped(self._typed.schema)
        """The schema of the answer, always an object: a type that is none is wrapped in one."""
        self.field = None if self._is_object else WRAPPED
        """The field of the answer that holds the value, where it is wrapped."""

    def __repr__(self) -> str:
        return f"OutputType({self.name})"

    def validate(self, answer: JsonValue) -> T | Problems:
        """An answer, as JSON text or as the arguments of a call, turned into the type; or what is wrong with
        it. Raises nothing. An async ``check`` is left out: :meth:`checked` makes it."""
        found = self._typed_value(answer)
        if isinstance(found, Problems) or self._check is None or inspect.iscoroutinefunction(self._check):
            return found
        try:
            words = self._check(found)
        except (ValueError, ToolError) as error:
            words = _words(error)
        return found if words is None else Problems((clean(str(words)),))

    async def checked(self, answer: JsonValue) -> T | Problems:
        """As :meth:`validate`, with a ``check`` of either kind. Raises what it raises, but for ``ValueError``
        and ``ToolError``."""
        found = self._typed_value(answer)
        if isinstance(found, Problems) or self._check is None:
            return found
        try:
            words = self._check(found)
            words = await words if inspect.isawaitable(words) else words
        except (ValueError, ToolError) as error:
            words = _words(error)
        return found if words is None else Problems((clean(str(words)),))

    def _typed_value(self, answer: JsonValue) -> Any:
        value = answer
        if isinstance(answer, str):
            value, problem = parse_answer(answer)
            if problem is not None:
                # Text that is no JSON may itself be the value, when the type is text.
                bare = None if self._is_object else self._fitted(answer)
                return Problems((problem,)) if bare is None or isinstance(bare, Problems) else bare
        if not self._is_object and isinstance(value, dict) and set(value) == {WRAPPED}:  # pyright: ignore[reportUnknownArgumentType]
            found = self._fitted(value[WRAPPED])
            if not isinstance(found, Problems):
                return found
            bare = self._fitted(value)
            return found if isinstance(bare, Problems) else bare
        return self._fitted(value)

    def partial(self, text: str) -> T | None:
        """What an answer that is still being written says so far, as an unchecked value of the type: a field
        that has not come has its default, else None; the last text or number may still grow. None before
        there is anything to show."""
        from ._partial import build, read_partial

        start = _FENCE_START.match(text)
        found = read_partial(text[start.end() :] if start else text)
        if not self._is_object and isinstance(found, dict):
            found = found.get(WRAPPED)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return None if found is None else build(self.type, found)

    def _fitted(self, value: JsonValue) -> T | Problems:
        found, errors = self._typed.check(value)
        return Problems(tuple(clean(error) for error in errors)) if errors else found


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _wrapped(schema: JsonObject) -> JsonObject:
    whole: JsonObject = {
        "type": "object",
        "properties": {WRAPPED: {key: value for key, value in schema.items() if key != "$defs"}},
        "required": [WRAPPED],
        "additionalProperties": False,
    }
    if "$defs" in schema:
        whole["$defs"] = schema["$defs"]
    return normalise(whole)


def parse_answer(text: str) -> tuple[JsonValue, str | None]:
    """The JSON value of an answer, with or without a fence around it; or what is wrong with it."""
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


def _compiled(type_: Any, name: str) -> Typed:
    try:
        return _cached(type_, name)
    except TypeError:  # a type that cannot be a key
        return _compile(type_, name)


@lru_cache(maxsize=64)
def _cached(type_: Any, name: str) -> Typed:
    return _compile(type_, name)


def _compile(type_: Any, name: str) -> Typed:
    from ._typed import compile_type

    return compile_type(f"output type {name}", type_)
