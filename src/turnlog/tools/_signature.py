"""What a function's signature says, without loading anything heavy: parameters, hints, injection."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from turnlog.contract import AgentError, Runtime

from ._context import ToolContext

_INJECTABLE: dict[str, Any] = {"ToolContext": ToolContext, "Runtime": Runtime}


class Parameters(NamedTuple):
    """``shown`` go into the schema; ``context`` and ``runtime`` name the injected ones."""

    shown: list[inspect.Parameter]
    context: tuple[str, ...]
    runtime: tuple[str, ...]


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
    for parameter in signature.parameters.values():
        hint = hints.get(parameter.name, Any)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            shown.append(parameter.replace(annotation=hint))
        elif _asks_for(hint, ToolContext):
            context.append(parameter.name)
        elif _asks_for(hint, Runtime):
            runtime.append(parameter.name)
        else:
            # By name alone: a default before a parameter without one is then no error.
            shown.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))
    return Parameters(shown, tuple(context), tuple(runtime))


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


def _asks_for(hint: Any, wanted: type) -> bool:
    if get_origin(hint) is Annotated:
        return _asks_for(get_args(hint)[0], wanted)
    if get_origin(hint) in (Union, types.UnionType):
        rest = [arm for arm in get_args(hint) if arm is not type(None)]
        return len(rest) == 1 and _asks_for(rest[0], wanted)
    if wanted is ToolContext:
        return isinstance(hint, type) and issubclass(hint, ToolContext)
    return hint is wanted
