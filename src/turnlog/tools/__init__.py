"""A call in, an answer out: ``@tool``, schemas, the registry and the executor.

Nothing heavy is loaded before a tool's schema is first needed.
"""

from ._answer import Content, Deferral, ResultPart, ToolAnswer, ToolError, ToolResult
from ._context import AgentInfo, GivenAnswer, Journal, ProgressSink, ToolContext, check_deps
from ._executor import ToolExecutor
from ._options import NOT_RUN, Reconcile, ToolDefinition, ToolOptions
from ._output import OutputType, Problems, parse_answer
from ._registry import Executor, Registry, ToolLike, ToolRegistry, Toolset, ToolSource, as_tool
from ._render import ImageContent, render
from ._schema import check_schema
from ._tool import Tool, tool
from .code import code_tools

__all__ = [
    "AgentInfo",
    "Content",
    "Deferral",
    "Executor",
    "GivenAnswer",
    "ImageContent",
    "Journal",
    "NOT_RUN",
    "OutputType",
    "Problems",
    "ProgressSink",
    "Reconcile",
    "Registry",
    "ResultPart",
    "Tool",
    "ToolAnswer",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolExecutor",
    "ToolLike",
    "ToolOptions",
    "ToolRegistry",
    "ToolResult",
    "ToolSource",
    "Toolset",
    "as_tool",
    "check_deps",
    "check_schema",
    "code_tools",
    "parse_answer",
    "render",
    "tool",
]
