"""Annotations that pydantic does not take as they are, rewritten so that it does."""

from __future__ import annotations

import sys
import types
import typing
from typing import Annotated, Any, NotRequired, Required, Union, cast, get_args, get_origin

import msgspec
from pydantic import GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from ._check import check_schema
from ._schema import normalise


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
