"""Types in, JSON schema and checked values out. The one file of this room that imports pydantic, and for
that reason loaded when the first tool is used."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, NotRequired, Required, Union, cast, get_args, get_origin

import msgspec
import pydantic_core
from pydantic import ConfigDict, GetJsonSchemaHandler, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, PydanticJsonSchemaWarning
from pydantic_core import ErrorDetails, PydanticCustomError, ValidationError, core_schema

from turnlog.contract import AgentError, JsonObject, encode

from ._schema import check_schema, forbid_extras, found_text, normalise, resolve_ref, unknown_field


def adapt(annotation: Any) -> Any:
    """msgspec structs, and TypedDicts of ``typing`` before Python 3.12, wherever they stand in a type."""
    return _Adapter().adapt(annotation)


class _Adapter:
    def __init__(self) -> None:
        self._dicts: dict[type, Any] = {}

    def adapt(self, annotation: Any) -> Any:
        origin = get_origin(annotation)
        if origin is None:
            if _is_struct(annotation):
                return _with_struct(annotation)
            if sys.version_info < (3, 12) and _is_plain_typed_dict(annotation):
                return self._typed_dict(annotation)
            return annotation
        if _is_struct(origin):
            return _with_struct(annotation)
        if origin is typing.Literal:
            return annotation
        return self._rebuild(annotation, origin)

    def _rebuild(self, annotation: Any, origin: Any) -> Any:
        args: tuple[Any, ...] = get_args(annotation)
        if origin is Annotated:
            inner = self.adapt(args[0])
            return annotation if inner is args[0] else Annotated[(inner, *args[1:])]
        new = tuple(cast("Any", arg) if isinstance(arg, list) else self.adapt(arg) for arg in args)
        if all(left is right for left, right in zip(new, args, strict=True)):
            return annotation
        if origin in (Union, types.UnionType):
            return Union[new]  # noqa: UP007  (a tuple of arms)
        try:
            return origin[new]
        except TypeError:  # typing's own aliases: List[int] has the origin list, Callable is special
            return annotation.copy_with(new)

    def _typed_dict(self, annotation: Any) -> Any:
        from typing_extensions import TypedDict

        if annotation not in self._dicts:
            self._dicts[annotation] = annotation  # holds itself: left to pydantic, which says so clearly
            hints = typing.get_type_hints(annotation, include_extras=True)
            fields: dict[str, Any] = {}
            for name, hint in hints.items():
                mark: Any = Required if name in annotation.__required_keys__ else NotRequired
                if get_origin(hint) in (Required, NotRequired):
                    # Where annotations are text, Python has not seen this word and counts it wrong.
                    mark, hint = get_origin(hint), get_args(hint)[0]
                fields[name] = mark[self.adapt(hint)]
            made = TypedDict(annotation.__name__, fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]
            made.__doc__ = annotation.__doc__
            made.__module__ = annotation.__module__
            self._dicts[annotation] = made
        return self._dicts[annotation]


def _is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _with_struct(annotation: Any) -> Any:
    return Annotated[annotation, _StructType(annotation)]


def _is_plain_typed_dict(annotation: Any) -> bool:
    return typing.is_typeddict(annotation) and type(annotation).__module__ == "typing"


class _StructType:
    """Teaches pydantic one msgspec struct: its schema and its strict conversion."""

    def __init__(self, annotation: Any) -> None:
        self._type = annotation

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._convert)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return self.inline_schema()

    def inline_schema(self) -> dict[str, Any]:
        """The struct's schema with its definitions inside, since a part of a schema has no ``$defs``."""
        whole = normalise(msgspec.json.schema(self._type))
        return _inlined(whole, whole.get("$defs", {}), ())

    def _convert(self, value: Any) -> Any:
        if isinstance(value, get_origin(self._type) or self._type):
            return value
        try:
            return msgspec.convert(value, self._type, strict=True)
        except msgspec.ValidationError as error:
            found = check_schema(msgspec.json.schema(self._type), value) or [str(error)]
            raise PydanticCustomError(
                "struct", "{words}", {"words": "; ".join(found).replace("{", "(").replace("}", ")")}
            ) from error


def _inlined(node: Any, definitions: dict[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, definitions, inside) for item in node]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(node, dict):
        return node
    ref = node.get("$ref")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(ref, str):
        name = ref.rsplit("/", 1)[-1]
        if name in inside:
            return {"type": "object"}  # a struct that holds itself: open from the second level on
        return _inlined(definitions[name], definitions, (*inside, name))
    return {key: _inlined(value, definitions, inside) for key, value in node.items() if key != "$defs"}  # pyright: ignore[reportUnknownVariableType]


_MISSING = {
    "missing",
    "missing_argument",
    "missing_keyword_only_argument",
    "missing_positional_only_argument",
}
_EXTRA = {"extra_forbidden", "unexpected_keyword_argument"}
_SHOWN = 25


def describe(error: ValidationError, value: object, schema: JsonObject) -> list[str]:
    """One line for each place where something is wrong."""
    places: dict[str, list[str]] = {}
    for item in error.errors(include_url=False, include_context=False):
        path, words = _one(item, value, schema)
        lines = places.setdefault(path, [])
        if words not in lines:
            lines.append(words)
    out = [f"{path}: {_joined(lines)}" if path else _joined(lines) for path, lines in places.items()]
    rest = len(out) - _SHOWN
    return [*out[:_SHOWN], f"and {rest} more"] if rest > 0 else out


def _one(item: ErrorDetails, value: object, schema: JsonObject) -> tuple[str, str]:
    kind, loc = item["type"], item["loc"]
    steps, owner = _walk(loc, value, ends_outside=kind in _MISSING)
    path = _path(steps)
    if kind in _MISSING:
        return path, "is required but missing"
    if kind in _EXTRA and steps:
        known = _fields(owner, steps, schema)
        return path, unknown_field(str(steps[-1]), known) if known else "there is no such field"
    words = item["msg"]
    if kind == "struct":
        return path, words
    for start, instead in (("Input should ", "should "), ("Value error, ", ""), ("Assertion failed, ", "")):
        if words.startswith(start):
            words = instead + words[len(start) :]
    return path, f"{words}, found {found_text(item['input'])}"


def _joined(lines: list[str]) -> str:
    """Several at one place are the arms of a union: what was found is said once."""
    if len(lines) == 1:
        return lines[0]
    heads = [line.rsplit(", found ", 1)[0] for line in lines]
    tails = {line.rsplit(", found ", 1)[-1] for line in lines if ", found " in line}
    found = f", found {tails.pop()}" if len(tails) == 1 else ""
    return " or ".join(dict.fromkeys(heads)) + found


def _walk(
    loc: tuple[int | str, ...], value: object, *, ends_outside: bool
) -> tuple[list[int | str], dict[str, Any]]:
    """The steps of ``loc`` that lead through ``value``; the others name arms of unions and are left out."""
    steps: list[int | str] = []
    owner: dict[str, Any] = {}
    for index, step in enumerate(loc):
        last = index == len(loc) - 1
        match value:
            case dict() if step in value or (last and ends_outside):
                owner = cast("dict[str, Any]", value)
                value = owner.get(str(step))
                steps.append(step)
            case list() if isinstance(step, int) and step < len(cast("list[Any]", value)):
                value = cast("list[Any]", value)[step]
                steps.append(step)
            case _:
                continue
    return steps, owner


def _fields(owner: dict[str, Any], steps: list[int | str], schema: JsonObject) -> list[str]:
    """The names allowed beside an unknown one, read from the schema along the way to it."""
    node = schema
    for step in steps[:-1]:
        node = _step(resolve_ref(schema, node), step, schema)
    node = resolve_ref(schema, node)
    return list(cast("JsonObject", node.get("properties") or {}))


def _step(node: JsonObject, step: int | str, root: JsonObject) -> JsonObject:
    arms = [resolve_ref(root, arm) for arm in (node, *(node.get("anyOf") or ()), *(node.get("oneOf") or ()))]
    for arm in arms:
        named = cast("JsonObject", arm.get("properties") or {})
        found = arm.get("items") if isinstance(step, int) else named.get(step)
        if isinstance(found, dict):
            inner = resolve_ref(root, cast("JsonObject", found))
            for choice in (inner, *(inner.get("anyOf") or ()), *(inner.get("oneOf") or ())):
                choice = resolve_ref(root, choice)
                if "properties" in choice or "items" in choice:
                    return choice
            return inner
    return {}


def _path(steps: list[int | str]) -> str:
    out = ""
    for step in steps:
        if isinstance(step, int):
            out += f"[{step}]"
        else:
            out += f".{step}" if out else step
    return out


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
        # Models that ask for unknown fields get them; else a field that nobody reads is a mistake to report.
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
        except ValidationError as error:
            whole = _whole_numbers(value)
            if whole is value:
                return None, describe(error, value, self.schema)
        # To JSON 2.0 is an integer: some providers write every number so.
        try:
            return self._validate(whole), []
        except ValidationError as error:
            return None, describe(error, whole, self.schema)

    def _validate(self, value: object) -> Any:
        # From JSON, so that exactly what JSON lacks (dates, tuples, bytes…) is converted and nothing else.
        return self._adapter.validate_json(encode(value), strict=True, extra=self._extra)


_HOLDABLE = "text, numbers, lists, dicts, a dataclass, a TypedDict, or a pydantic or msgspec model"


def _no_schema(type_: Any, error: Exception) -> str:
    """What is wrong with a type, in words: which field of it, and what to use in its place."""
    words = str(error).split("\n\nFor further information", 1)[0]
    found, where = _culprit(type_)
    unknown = isinstance(error, PydanticUserError) and error.code == "schema-for-unknown-type"
    if not unknown and not where:
        return f"has no JSON schema: {words}"
    return (
        f"{where}is of type {_named(found)}, and no JSON schema can be made of that: a model cannot send "
        f"such a value; use {_HOLDABLE}"
    )


def _culprit(type_: Any) -> tuple[Any, str]:
    """The innermost field whose type has no schema, and the words that lead to it."""
    fields: dict[str, Any] = {}
    if get_origin(type_) is Annotated:
        return _culprit(get_args(type_)[0])
    is_struct = _is_struct(type_)
    has_schema: Callable[[Any], object] = msgspec.json.schema if is_struct else TypeAdapter
    if dataclasses.is_dataclass(type_) or typing.is_typeddict(type_) or is_struct:
        with contextlib.suppress(Exception):
            fields = typing.get_type_hints(cast("type[Any]", type_))
    for name, hint in fields.items():
        try:
            has_schema(hint)
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
