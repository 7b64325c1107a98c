"""A function that a model may call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, Unpack, cast, overload

from turnlog.contract import AgentError, JsonObject, ToolSpec

from ._context import ToolContext
from ._options import DEFAULT_TIMEOUT, Reconcile, ToolDefinition, ToolOptions, check_name, check_options
from ._schema import check_schema, normalise
from ._signature import (
    Docs,
    check_signature,
    function_doc,
    function_name,
    is_async,
    is_doubtful,
    is_method,
    local_names,
    read_docstring,
    resolve,
)

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    from ._signature import Parameters
    from ._typed import Typed

    P = ParamSpec("P", default=...)
    Q = ParamSpec("Q")
    R = TypeVar("R", default=Any)
else:  # a default is a word for type checkers; the standard library knows it from Python 3.13 on
    from typing import ParamSpec, TypeVar

    P, Q, R = ParamSpec("P"), ParamSpec("Q"), TypeVar("R")


class Bound(NamedTuple):
    """Checked arguments, ready to call with; or what is wrong with them."""

    kwargs: dict[str, Any]
    problems: list[str]


class Tool(Generic[P, R]):
    """A named function with a schema. Calling the object calls the function, as if it were not decorated.

    Types are compiled when the schema is first needed, so that a tool may name types declared after it; but
    a class that no model could send is refused here, as soon as it can be seen.
    """

    timeout: float | None = DEFAULT_TIMEOUT
    requires_approval: bool = False
    requires_agent: bool = False
    idempotent: bool = False
    keyed: bool = False
    reconcile: Reconcile | None = None
    concurrent: bool = False
    ends_run: bool = False
    retries: int = 0
    retry_on: tuple[type[Exception], ...] = ()
    max_output: int | None = None
    strict: bool | None = None
    annotations: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        schema: JsonObject | None = None,
        names: Mapping[str, Any] | None = None,
        **options: Unpack[ToolOptions],
    ) -> None:
        self.function = function
        self.name = name or function_name(function)
        self.is_async = is_async(function)
        self._names = names
        self._schema = schema
        self._description = description
        self._typed: Typed | None = None
        self._attribute: str | None = None
        check_name(self.name)
        check_options(self.name, options)
        self._options = options
        self._requires_runtime = bool(options.get("requires_runtime"))
        for option, value in options.items():
            if option != "requires_runtime":
                setattr(self, option, value)
        self._unbound = schema is None and is_method(function)
        self._signature = None if schema is not None else check_signature(self.name, function, self._unbound)
        functools.update_wrapper(self, function, updated=())
        self.check_types()

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        schema: JsonObject,
        execute: Callable[[JsonObject, ToolContext], Any],
        **options: Unpack[ToolOptions],
    ) -> Tool[[JsonObject, ToolContext], Any]:
        """A tool whose schema comes from elsewhere; ``execute`` is given (arguments, ctx)."""
        return Tool(execute, name=name, description=description, schema=schema, **options)

    @classmethod
    def from_definition(cls, definition: ToolDefinition) -> Tool[[JsonObject, ToolContext], Any]:
        return cls.from_schema(
            definition.name,
            definition.description,
            definition.parameter_schema,
            definition.execute,
            timeout=DEFAULT_TIMEOUT if definition.timeout_ms is None else definition.timeout_ms / 1000,
            requires_approval=definition.requires_approval,
            requires_runtime=definition.requires_runtime,
            requires_agent=definition.requires_agent,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[P, R]: ...
    @overload
    def __get__(
        self: Tool[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Tool[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        """A method declared with ``@tool``, taken from an instance, is a tool of that instance and stays the
        same one. Any other tool kept as a class attribute is itself."""
        if instance is None or not self._unbound:
            return self
        method: Any = self.function
        bound: Tool = Tool(
            method.__get__(instance, owner),
            name=self.name,
            description=self._description,
            names=self._names,
            **self._options,
        )
        own = getattr(instance, "__dict__", None)
        if isinstance(own, dict) and self._attribute is not None:
            own[self._attribute] = bound  # found before this descriptor from now on
        return bound

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    def check_types(self) -> None:
        """Raise ``ConfigInvalid`` for a parameter of a class that no model could send. A type that is
        declared further down is left for later."""
        if self._signature is None or self._unbound:
            return
        try:
            parameters = self._parameters
        except AgentError:
            return
        if parameters is not None and any(is_doubtful(each.annotation) for each in parameters.shown):
            self._compiled()

    # ── what the model is told ──

    @functools.cached_property
    def spec(self) -> ToolSpec:
        """Raises ``ConfigInvalid`` when the signature's types cannot be shown to a model."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameter_schema=self.parameter_schema,
            strict=self.strict,
        )

    @functools.cached_property
    def parameter_schema(self) -> JsonObject:
        if self._schema is not None:
            schema = normalise(self._schema)
            if schema.get("type") != "object":
                schema = normalise({**schema, "type": "object"})
            return schema if "properties" in schema else normalise({**schema, "properties": {}})
        typed = self._compiled()
        properties = typed.schema["properties"]
        for name, words in self._docs.parameters.items():
            if name in properties and "description" not in properties[name]:
                properties[name] = normalise({**properties[name], "description": words})
        return typed.schema

    @property
    def description(self) -> str:
        if self._description is not None:
            return self._description
        # Some providers refuse an empty description.
        return self._docs.description or self.name.replace("_", " ")

    @functools.cached_property
    def _docs(self) -> Docs:
        return Docs("", {}) if self._schema is not None else read_docstring(function_doc(self.function))

    @functools.cached_property
    def _parameters(self) -> Parameters | None:
        if self._signature is None:
            return None
        if self._unbound:
            raise AgentError(
                "ConfigInvalid",
                f"tool {self.name!r} is a method; take it from an instance, as instance.{self.name}",
            )
        return resolve(self.name, self.function, self._signature, self._names)

    def _compiled(self) -> Typed:
        if self._typed is None:
            from ._typed import compile_parameters

            assert self._parameters is not None
            self._typed = compile_parameters(f"tool {self.name!r}", self._parameters.shown)
        return self._typed

    # ── what runs it ──

    def bind(self, arguments: JsonObject) -> Bound:
        """Check arguments against the schema; every problem at once."""
        if self._parameters is None:
            return Bound(arguments, check_schema(self.parameter_schema, arguments))
        injected = {*self._parameters.context, *self._parameters.runtime}
        if taken := sorted(injected & arguments.keys()):
            return Bound({}, [f"{name}: there is no such field" for name in taken])
        value, problems = self._compiled().check(arguments)
        return Bound(value or {}, problems)

    def call(self, kwargs: dict[str, Any], ctx: ToolContext) -> Any:
        """Call the function with checked arguments and what it asked to be given."""
        function = cast("Callable[..., Any]", self.function)
        if self._parameters is None:
            return function(kwargs, ctx)
        given: dict[str, Any] = dict.fromkeys(self._parameters.context, ctx)
        given.update(dict.fromkeys(self._parameters.runtime, ctx.runtime))
        return function(**kwargs, **given)

    @property
    def takes_context(self) -> bool:
        return self._parameters is None or bool(self._parameters.context)

    @property
    def definition(self) -> ToolDefinition:
        timeout = self.timeout
        return ToolDefinition(
            name=self.name,
            description=self.description,
            parameter_schema=self.parameter_schema,
            execute=self._execute,
            timeout_ms=round(timeout * 1000) if isinstance(timeout, int | float) else None,
            requires_approval=self.requires_approval,
            requires_runtime=self.requires_runtime,
            requires_agent=self.requires_agent,
        )

    async def _execute(self, arguments: JsonObject, ctx: ToolContext) -> Any:
        """The bare function on checked arguments: no timeout, no thread. ``ToolExecutor`` has those."""
        bound = self.bind(arguments)
        if bound.problems:
            raise AgentError("ToolInvalidArgs", invalid_text(self.name, bound.problems))
        found = self.call(bound.kwargs, ctx)
        return await found if hasattr(found, "__await__") else found

    # ── what others ask of it ──

    @property
    def requires_runtime(self) -> bool:
        return self._requires_runtime or (self._parameters is not None and bool(self._parameters.runtime))

    @property
    def rerunnable(self) -> bool:
        """May be run again, with the same key, when it is not known whether it ran."""
        return self.idempotent or self.keyed

    @property
    def deps_types(self) -> tuple[Any, ...]:
        """The X of ``ctx: ToolContext[X]``; empty for a tool that takes no context, or a bare one."""
        return () if self._parameters is None else self._parameters.deps


def invalid_text(tool_name: str, problems: list[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = "\n".join(f"- {problem}" for problem in problems)
    return (
        f"The arguments of {tool_name!r} are not valid ({count}); nothing was run.\n{lines}\n"
        "Correct them and call the tool again."
    )


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Unpack[ToolOptions],
) -> Tool[P, R]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Unpack[ToolOptions],
) -> Any:
    """Make a typed function, sync or async, a tool: ``@tool``, ``@tool(timeout=30)`` or ``tool(function)``.

    Name, description and schema come from the signature and the docstring. A parameter annotated
    ``ToolContext`` is given the call's context and is no part of the schema. Options: see ``ToolOptions``.
    Raises ``ConfigInvalid`` for an unknown option and for a signature that no model could call.
    """

    def make(function: Any) -> Tool:
        if isinstance(function, Tool):
            if name is None and description is None and not options:
                return cast("Tool", function)
            function = cast("Tool", function).function
        return Tool(function, name=name, description=description, names=local_names(function), **options)

    return make if function is None else make(function)
