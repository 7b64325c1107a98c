"""Types in, JSON schema and checked values out. The one file of this room that imports pydantic, and for
that reason loaded when the first tool is used."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import typing
from typing import Any, cast

import pydantic_core
from pydantic import ConfigDict, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning

from turnlog.contract import AgentError, JsonObject, encode

from ._adapt import adapt
from ._problems import describe
from ._schema import forbid_extras, normalise

_CONFIG = ConfigDict(
    extra="forbid",
    val_json_bytes="base64",
    ser_json_bytes="base64",
    use_enum_values=False,
    arbitrary_types_allowed=False,
)


class _Quiet(GenerateJsonSchema):
    """A default that JSON cannot show is left out of the schema; that is no reason for a warning."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        pass


class Typed:
    """The compiled form of one type or of one parameter list."""

    __slots__ = ("_adapter", "_extra", "_owner", "schema")

    def __init__(self, owner: str, type_: Any, *, is_call: bool = False, takes_rest: bool = False) -> None:
        self._owner = owner
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(type_, config=_config_for(type_))
            raw = self._adapter.json_schema(schema_generator=_Quiet, mode="validation")
        except (PydanticUserError, pydantic_core.SchemaError, PydanticJsonSchemaWarning, TypeError) as error:
            raise AgentError("ConfigInvalid", f"{owner} {_no_schema(type_, error)}", cause=error) from error
        if takes_rest:
            raw.setdefault("additionalProperties", True)
        schema = normalise(raw)
        # Models that ask for unknown fields get them; else a field nobody reads is a mistake to be told.
        strict = forbid_extras(schema, open_root=is_call)
        self.schema: JsonObject = schema if strict is None else strict
        self._extra: Any = None if strict is None else "forbid"

    def check(self, value: object) -> tuple[Any, list[str]]:
        """The value with its real types, or what is wrong with it, all of it, in words."""
        try:
            return self._check(value)
        except RecursionError:
            return None, ["nested too deeply"]
        except (Exception, SystemExit) as error:  # a validator of the author's that raised something else
            return None, [f"this could not be checked: {type(error).__name__}: {error}"]

    def _check(self, value: object) -> tuple[Any, list[str]]:
        try:
            return self._validate(value), []
        except pydantic_core.ValidationError as error:
            whole = _whole_numbers(value)
            if whole is value:
                return None, describe(error, value, self.schema)
        # To JSON 2.0 is an integer: some providers write every number so.
        try:
            return self._validate(whole), []
        except pydantic_core.ValidationError as error:
            return None, describe(error, whole, self.schema)

    def _validate(self, value: object) -> Any:
        # From JSON, so that exactly what JSON lacks (dates, tuples, bytes…) is converted and nothing else.
        return self._adapter.validate_json(encode(value), strict=True, extra=self._extra)


_HOLDABLE = "text, numbers, lists, dicts, a dataclass, a TypedDict, or a pydantic or msgspec model"


def _no_schema(type_: Any, error: Exception) -> str:
    """What is wrong with a type, in words: which field of it, and what to use in its place."""
    words = str(error).split("\n\nFor further information", 1)[0]
    if not isinstance(error, PydanticUserError) or error.code != "schema-for-unknown-type":
        return f"has no JSON schema: {words}"
    found, where = _culprit(type_)
    return (
        f"{where}is of type {_named(found)}, and no JSON schema can be made of that: a model cannot send "
        f"such a value; use {_HOLDABLE}"
    )


def _culprit(type_: Any) -> tuple[Any, str]:
    """The innermost field whose type has no schema, and the words that lead to it."""
    fields: dict[str, Any] = {}
    if dataclasses.is_dataclass(type_) or typing.is_typeddict(type_):
        with contextlib.suppress(Exception):
            fields = typing.get_type_hints(cast("type[Any]", type_))
    for name, hint in fields.items():
        try:
            TypeAdapter(hint)
        except Exception:
            found, where = _culprit(hint)
            return found, f"has a field {name!r} that {where}"
    return type_, ""


def _named(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) else str(type_)


def _config_for(type_: Any) -> ConfigDict | None:
    """Models bring their own configuration and refuse another."""
    try:
        TypeAdapter(type_, config=ConfigDict())
    except PydanticUserError as error:
        if error.code == "type-adapter-config-unused":
            return None
    return _CONFIG


def compile_parameters(owner: str, parameters: list[inspect.Parameter]) -> Typed:
    """A parameter list as a type whose checked value is a dict of keyword arguments."""

    def capture(**kwargs: Any) -> dict[str, Any]:
        return kwargs

    shown = [each.replace(annotation=adapt(each.annotation)) for each in parameters]
    capture.__signature__ = inspect.Signature(shown)  # pyright: ignore[reportFunctionMemberAccess]
    capture.__annotations__ = {each.name: each.annotation for each in shown}
    rest = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in shown)
    try:
        typed = Typed(owner, capture, is_call=True, takes_rest=rest)
    except AgentError:
        for each in shown:  # one of them alone fails, and says which it is
            _check_parameter(f"{owner}: parameter {each.name!r}", each.annotation)
        raise
    typed.schema.setdefault("properties", {})
    return typed


def _check_parameter(owner: str, annotation: Any) -> None:
    try:
        Typed(owner, annotation)
    except AgentError as error:
        raise AgentError(
            "ConfigInvalid",
            f"{error.message}. An object that the tool works with is no argument: take it from ctx.deps "
            f"(ctx: ToolContext[{_named(annotation)}])",
            cause=error,
        ) from error


def compile_type(owner: str, type_: Any) -> Typed:
    return Typed(owner, adapt(type_))


def _whole_numbers(value: Any) -> Any:
    """``value`` with floats that are whole written as integers; the same object when there are none."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case dict():
            changed = {key: _whole_numbers(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
            return changed if any(changed[key] is not item for key, item in value.items()) else value  # pyright: ignore[reportUnknownVariableType]
        case list():
            items = [_whole_numbers(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case _:
            return value
