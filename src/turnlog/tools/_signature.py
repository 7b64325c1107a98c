"""What a function's signature says, without loading anything heavy: parameters, hints, injection;
and what its docstring says."""

from __future__ import annotations

import enum
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin

from turnlog.contract import AgentError, Runtime

from ._context import ToolContext

_INJECTABLE: dict[str, Any] = {"ToolContext": ToolContext, "Runtime": Runtime}


class Parameters(NamedTuple):
    """``shown`` go into the schema; ``context`` and ``runtime`` name the injected ones. ``deps`` is the X of
    each ``ToolContext[X]``."""

    shown: list[inspect.Parameter]
    context: tuple[str, ...]
    runtime: tuple[str, ...]
    deps: tuple[Any, ...] = ()


def function_name(function: Callable[..., Any]) -> str:
    target = _inner(function)
    return getattr(target, "__name__", "") or type(target).__name__


def function_doc(function: Callable[..., Any]) -> str:
    target = _inner(function)
    if isinstance(target, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return inspect.getdoc(target) or ""
    own = type(target).__call__ if not isinstance(target, type) else target
    return inspect.getdoc(own) or inspect.getdoc(target) or ""


def is_async(function: Callable[..., Any]) -> bool:
    target = _inner(function)
    if not isinstance(target, types.FunctionType | types.MethodType):
        target = getattr(target, "__call__", target)  # noqa: B004  (the method is wanted, not a test)
    return inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return function  # pyright: ignore[reportUnknownVariableType]


def is_method(function: Callable[..., Any]) -> bool:
    """Whether this is a function in a class body that still lacks its instance."""
    if not isinstance(function, types.FunctionType):
        return False
    names = function.__qualname__.rsplit("<locals>.", 1)[-1].split(".")
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return len(names) > 1 and first is not None and first.name == "self"


def _written(function: Any) -> Any:
    """The function somebody wrote, which has the annotations."""
    target = _inner(function)
    if isinstance(target, type):
        return target.__init__
    if isinstance(target, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        return target
    return type(target).__call__


def check_signature(name: str, function: Callable[..., Any], is_method: bool = False) -> inspect.Signature:
    """Refuse at declaration what no model could call: see the messages."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise AgentError(
            "ConfigInvalid",
            f"tool {name!r}: {function!r} has no signature Python can read; wrap it in a typed function",
            cause=error,
        ) from error
    for index, parameter in enumerate(signature.parameters.values()):
        if is_method and index == 0:
            continue
        match parameter.kind:
            case inspect.Parameter.POSITIONAL_ONLY:
                problem = "is positional-only; models name their arguments, so remove the '/'"
            case inspect.Parameter.VAR_POSITIONAL:
                problem = f"takes any number of positions; declare a list, as {parameter.name}: list[...]"
            case inspect.Parameter.VAR_KEYWORD:
                continue
            case _ if parameter.annotation is inspect.Parameter.empty:
                problem = f"has no type; annotate it, as {parameter.name}: str (or Any for anything)"
            case _:
                continue
        raise AgentError("ConfigInvalid", f"tool {name!r}: parameter {parameter.name!r} {problem}")
    return signature


def local_names(function: Callable[..., Any]) -> Mapping[str, Any] | None:
    """The names around a function declared inside another one: its annotations may be text that only they
    explain. None where the module's own names do."""
    target = _written(function)
    hints = getattr(target, "__annotations__", {})
    place: str = getattr(target, "__qualname__", "")
    if "<locals>" not in place or not any(isinstance(hint, str) for hint in hints.values()):
        return None
    around: list[str] = []
    while "." in place:
        place = place.rsplit(".", 1)[0].removesuffix(".<locals>")
        around.append(place)
    wanted = set(re.findall(r"\w+", " ".join(hint for hint in hints.values() if isinstance(hint, str))))
    found: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:  # whatever stands between, a registry or an agent, is passed over
        own = frame.f_globals is target.__globals__ and frame.f_code.co_qualname in around
        if own:
            found = {name: frame.f_locals[name] for name in wanted & frame.f_locals.keys()} | found
        frame = frame.f_back
    return found


def resolve(
    name: str, function: Callable[..., Any], signature: inspect.Signature, names: Mapping[str, Any] | None
) -> Parameters:
    """The parameters with real types in place of text."""
    hints = _hints(name, function, names)
    shown: list[inspect.Parameter] = []
    context: list[str] = []
    runtime: list[str] = []
    deps: list[Any] = []
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            shown.append(parameter.replace(annotation=hint))
        elif _asks_for(hint, ToolContext):
            context.append(parameter.name)
            deps += _deps_of(hint)
        elif _asks_for(hint, Runtime):
            runtime.append(parameter.name)
        else:
            # By name alone: a default before a parameter without one is then no error.
            shown.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
    return Parameters(shown, tuple(context), tuple(runtime), tuple(deps))


def _hints(name: str, function: Callable[..., Any], names: Mapping[str, Any] | None) -> dict[str, Any]:
    target = _written(function)
    local = dict(names or {})
    while True:
        try:
            return typing.get_type_hints(target, localns=local or None, include_extras=True)
        except NameError as error:
            # Types imported for the type checker alone: ours are known anyway.
            if error.name in _INJECTABLE and error.name not in local:
                local[error.name] = _INJECTABLE[error.name]
                continue
            if error.name is not None and error.name not in local and _only_in_context(target, error.name):
                local[error.name] = Any  # what deps are is not needed to leave them out of the schema
                continue
            raise AgentError(
                "ConfigInvalid",
                f"tool {name!r}: the type {error.name!r} in its signature cannot be found; import it where "
                "the tool is declared, outside of TYPE_CHECKING",
                cause=error,
            ) from error
        except Exception as error:
            raise AgentError(
                "ConfigInvalid", f"tool {name!r}: its annotations cannot be read: {error}", cause=error
            ) from error


def _only_in_context(function: Any, name: str) -> bool:
    """Whether a name stands in annotations of the form ``ToolContext[…]`` alone."""
    hints = [hint for hint in getattr(function, "__annotations__", {}).values() if isinstance(hint, str)]
    found = [hint for hint in hints if re.search(rf"\b{re.escape(name)}\b", hint)]
    return bool(found) and all(re.match(r"[\w.]*ToolContext\[", hint) for hint in found)


def _asks_for(hint: Any, wanted: type) -> bool:
    hint = _bare(hint)
    if wanted is ToolContext:
        hint = get_origin(hint) or hint
        return isinstance(hint, type) and issubclass(hint, ToolContext)
    return hint is wanted


def _deps_of(hint: Any) -> tuple[Any, ...]:
    return get_args(_bare(hint))[:1]


def _bare(hint: Any) -> Any:
    """The type itself, without ``Annotated`` and ``| None`` around it."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        rest = [arm for arm in get_args(hint) if arm is not type(None)]
        return _bare(rest[0]) if len(rest) == 1 else hint
    return hint


# ── classes that JSON may not be able to hold ──

_PLAIN: frozenset[Any] = frozenset(
    {str, int, float, bool, bytes, list, dict, tuple, set, frozenset, object, type(None)}
)
_KNOWN_MODULES = ("collections", "datetime", "decimal", "enum", "pathlib", "typing", "uuid")
_MARKS = ("__get_pydantic_core_schema__", "__dataclass_fields__", "__struct_fields__")


def is_doubtful(hint: Any) -> bool:
    """Whether a type holds a class that may have no schema. A first look that loads nothing: what is doubtful
    is compiled at once, everything else when its schema is first needed."""
    if get_origin(hint) is typing.Literal:
        return False
    arms = [arm for arm in get_args(hint) if not isinstance(arm, list)]
    if arms:
        return any(is_doubtful(arm) for arm in arms)
    if not isinstance(hint, type):
        return False
    found = cast("type[Any]", hint)
    if found in _PLAIN or found.__module__.split(".")[0] in _KNOWN_MODULES:
        return False
    if typing.is_typeddict(found) or issubclass(found, enum.Enum) or hasattr(found, "_fields"):
        return False
    return not any(hasattr(found, mark) for mark in _MARKS)


class Docs(NamedTuple):
    description: str
    parameters: dict[str, str]


def read_docstring(text: str) -> Docs:
    """Google, NumPy and Sphinx styles; anything else is description."""
    if not text.strip():
        return Docs("", {})
    from docstring_parser import ParseError, parse

    try:
        found = parse(text)
    except ParseError:
        return Docs(text.strip(), {})
    parts = [part.strip() for part in (found.short_description, found.long_description) if part]
    for example in found.examples:
        body = "\n".join(part for part in (example.snippet, example.description) if part)
        parts.append(f"Example:\n{body}")
    returns = found.returns
    if returns is not None and returns.description:
        parts.append(f"{'Yields' if returns.is_generator else 'Returns'}: {_one_line(returns.description)}")
    parameters = {
        param.arg_name.lstrip("*"): _one_line(param.description)
        for param in found.params
        if param.description
    }
    return Docs("\n\n".join(parts), parameters)


def _one_line(text: str) -> str:
    return " ".join(text.split())
