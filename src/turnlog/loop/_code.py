"""The parts of an agent that works on the files of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from turnlog.approvals import (
    ApprovalPolicy,
    Rule,
    ask_before_write,
    everything_asks,
    read_only,
    workspace_auto,
)
from turnlog.contract import READ_ARTIFACT, RECALL, AgentError, ExecutionEnv, Runtime
from turnlog.runtime import LocalRuntime, SandboxLevel
from turnlog.tools import ToolSource, code_tools
from turnlog.widgets import TodoWidget, Widget, WorkspaceWidget

PolicyName: TypeAlias = Literal["read-only", "ask-before-write", "workspace-auto", "everything-asks"]
"""The policies of ``turnlog.approvals`` by name."""

INSTRUCTIONS = """\
You are a coding agent. You work on the files of the workspace with the tools you are given.

- Look before you change: find the place with grep and glob, read the file, then edit it.
- Make the smallest change that does what was asked, in the style of the code around it.
- After a change run the tests or the program with shell, and read what it says. Claim only what you saw.
- A tool that fails tells why: read it and do something else. Do not repeat a call that failed.
- For work of several steps keep a list with todo_plan and mark each step as you do it.
- When you are done, say in a few words what you changed and what you saw."""


class CodingParts(TypedDict):
    """Arguments of ``Agent``."""

    tools: Sequence[ToolSource]
    runtime: Runtime
    widgets: Sequence[Widget[Any]]
    approvals: ApprovalPolicy
    instructions: str


def coding_parts(
    workspace: str | os.PathLike[str] = ".",
    *,
    approvals: PolicyName = "ask-before-write",
    sandbox: SandboxLevel | Literal["auto"] = "auto",
    policy: ExecutionEnv | None = None,
) -> CodingParts:
    """What makes an agent a coding agent: ``Agent(model, **coding_parts("."))``. Built-in tools over a
    ``LocalRuntime``, a list of steps and of files in view, and one of the ready-made policies. Raises
    ``ConfigInvalid``; a system without a sandbox is reported when the runtime connects."""
    runtime = LocalRuntime(workspace, policy=policy, level=sandbox)
    policies: dict[str, Callable[[], ApprovalPolicy]] = {
        "read-only": lambda: read_only([_HARMLESS]),
        "ask-before-write": lambda: ask_before_write([_HARMLESS]),
        "workspace-auto": lambda: workspace_auto(runtime, [_HARMLESS]),
        "everything-asks": everything_asks,
    }
    if approvals not in policies:
        raise AgentError("ConfigInvalid", f"approvals is {approvals!r}; use {', '.join(policies)}")
    return CodingParts(
        tools=code_tools(),
        runtime=runtime,
        widgets=(TodoWidget(), WorkspaceWidget()),
        approvals=policies[approvals](),
        instructions=INSTRUCTIONS,
    )


_HARMLESS = Rule(action="approve", tools=("todo_*", "skill", RECALL, READ_ARTIFACT, "job_stop"))
"""Tools that change nothing but the session, or stop what the session started."""
