"""Hooks that are commands, in the JSON shape that coding agents share: what happened comes on standard input,
and the exit code, with JSON on standard output, says what is to be done about it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from turnlog import events
from turnlog.contract import AgentError, JsonObject, RunEvent, ToolCallRequest, encode, scrub
from turnlog.tools import ToolAnswer

from ._ports import Change, Hooks, Note, Question, RunIds, Veto

TIMEOUT = 60.0
_BLOCKS = 2
"""The exit code that blocks; standard error has the reason."""
_KEPT = 100_000
"""Bytes of a command's output that are read; the rest is thrown away."""
_SETTLES = 1.0
"""Seconds in which the output of an ended command is read to its end."""
_ENVIRONMENT = re.compile(r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TERM|TMPDIR|TEMP|TMP|SYSTEMROOT")
"""What a command finds in its environment; keys are nothing of it."""

POINTS = {"PreToolUse": "check_tool", "PostToolUse": "check_result", "Stop": "on_event"}
"""The events of the shared shape → the hook of ours."""


@dataclass(frozen=True)
class CommandHook:
    """A command as a hook: ``Hooks(check_tool=[CommandHook("./guard.sh", matcher="shell|write")])``.

    Among ``check_tool`` it is told of ``PreToolUse``, among ``check_result`` of ``PostToolUse``, among
    ``on_event`` of ``Stop``, the end of a run. ``matcher`` is a regular expression for whole tool names. A
    text is run by the shell, a list is not. Exit code 2 blocks, with standard error as the reason. One that
    fails in another way, or takes longer than ``timeout`` seconds, fails the run: a guard that is broken must
    not let everything through.
    """

    command: str | Sequence[str]
    matcher: str = "*"
    timeout: float = TIMEOUT
    cwd: str | os.PathLike[str] | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the few variables that a command is given."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.matcher if self.matcher != "*" else "")
        except re.error as error:
            raise AgentError(
                "ConfigInvalid", f"the matcher {self.matcher!r} is no regular expression: {error}"
            ) from error

    @property
    def __name__(self) -> str:
        return self.command if isinstance(self.command, str) else shlex.join(self.command)

    async def __call__(
        self, given: ToolCallRequest | RunEvent, answer: ToolAnswer | None = None, *, ids: RunIds
    ) -> Veto | Change | Question | Note | None:
        told: JsonObject = {"session_id": ids.session_id, "run_id": ids.run_id, "cwd": self._folder}
        if not isinstance(given, ToolCallRequest):
            if isinstance(given, events.RunEnded):
                await self._ask({**told, "hook_event_name": "Stop", "status": given.result.status})
            return None
        if self.matcher not in ("", "*") and re.fullmatch(self.matcher, given.tool_name) is None:
            return None
        told |= {
            "hook_event_name": "PreToolUse" if answer is None else "PostToolUse",
            "tool_name": given.tool_name,
            "tool_input": given.arguments or {},
            "tool_use_id": given.tool_call_id,
        }
        if answer is None:
            return self._before(await self._ask(told))
        told["tool_response"] = {"content": answer.text, "is_error": answer.is_error}
        return self._after(await self._ask(told))

    @property
    def _folder(self) -> str:
        return os.path.abspath(self.cwd or os.getcwd())

    async def _ask(self, told: JsonObject) -> _Reply:
        ended = await run_command(self.command, encode(told), self.timeout, self._folder, self.env)
        said = scrub(ended.err.decode("utf-8", "replace")).strip()
        if ended.code == _BLOCKS:
            return _Reply(block=said or "the hook gave no reason")
        if ended.code is None:
            raise self._failed(f"did not end within {self.timeout:g} seconds; it was killed")
        if ended.code:
            raise self._failed(f"ended with exit code {ended.code}: {said[:500] or 'it said nothing'}")
        return self._read(ended.out)

    def _read(self, out: bytes) -> _Reply:
        if not out.lstrip().startswith(b"{"):
            return _Reply()  # words for people
        try:
            found: Any = json.loads(out)
        except ValueError as error:
            raise self._failed(f"wrote JSON that does not parse: {error}") from error
        found = cast("JsonObject", found)
        if found.get("continue") is False:
            raise self._failed(f"stopped the run: {found.get('stopReason') or 'it gave no reason'}")
        inner = found.get("hookSpecificOutput")
        special: JsonObject = cast("JsonObject", inner) if isinstance(inner, dict) else {}
        reason = str(special.get("permissionDecisionReason") or found.get("reason") or "no reason was given")
        decision = special.get("permissionDecision") or found.get("decision")
        changed = special.get("updatedInput")
        context = special.get("additionalContext")
        return _Reply(
            block=reason if decision in ("block", "deny") else None,
            ask=reason if decision == "ask" else None,
            change=cast("JsonObject", changed) if isinstance(changed, dict) else None,
            note=context if isinstance(context, str) and context.strip() else None,
        )

    def _before(self, reply: _Reply) -> Veto | Change | Question | None:
        if reply.block is not None:
            return Veto(scrub(reply.block))
        if reply.ask is not None:
            return Question(scrub(reply.ask))
        return None if reply.change is None else Change(reply.change)

    def _after(self, reply: _Reply) -> Note | None:
        said = "\n".join(filter(None, (reply.block, reply.note)))
        return Note(scrub(said)) if said else None

    def _failed(self, why: str) -> AgentError:
        return AgentError("HookFailed", f"the hook {self.__name__!r} {why}")


class _Reply(NamedTuple):
    block: str | None = None
    ask: str | None = None
    change: JsonObject | None = None
    note: str | None = None


class Ended(NamedTuple):
    """How a command ended; ``code`` None when its time was over."""

    code: int | None
    out: bytes
    err: bytes


async def run_command(
    command: str | Sequence[str], data: bytes, timeout: float, cwd: str, env: Mapping[str, str]
) -> Ended:
    """Run a command in a group of its own, with ``data`` on its standard input. Whatever it started is killed
    with it, also when it ends by itself or we are cancelled."""
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    kept = {name: value for name, value in os.environ.items() if _ENVIRONMENT.fullmatch(name)}
    loop = asyncio.get_running_loop()
    try:
        transport, process = await loop.subprocess_exec(
            lambda: _Process(loop), *words, cwd=cwd, env={**kept, **env}, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise AgentError("HookFailed", f"the hook {shlex.join(words)!r} cannot be run: {error}") from error
    stdin: Any = transport.get_pipe_transport(0)
    stdin.write(data + b"\n")
    stdin.close()
    code: int | None = None
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.shield(process.exited)
                code = transport.get_returncode()
    finally:
        _kill(transport)
        await asyncio.wait([process.closed], timeout=_SETTLES)  # one that left the group may hold a pipe open
        transport.close()
    return Ended(code, bytes(process.kept[1]), bytes(process.kept[2]))


class _Process(asyncio.SubprocessProtocol):
    """Keeps the beginning of what a command writes. Its end is told when it ends: a child of it may hold the
    pipes open for much longer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.kept = {1: bytearray(), 2: bytearray()}
        self.exited: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self.kept[fd] += data[: max(0, _KEPT - len(self.kept[fd]))]

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def _kill(process: asyncio.SubprocessTransport) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.get_pid(), signal.SIGKILL)
        elif process.get_returncode() is None:
            process.kill()


def read_hooks(settings: bytes | str, *, where: str, cwd: str | os.PathLike[str]) -> tuple[Hooks, list[str]]:
    """The command hooks of a settings file, and the events in it that no hook of ours is called for::

        {"hooks": {"PreToolUse": [{"matcher": "shell", "hooks": [{"command": "./guard.sh"}]}]}}

    Raises ``ConfigInvalid``, with ``where`` and the place in it."""
    try:
        found: Any = json.loads(settings)
    except ValueError as error:
        raise AgentError("ConfigInvalid", f"{where} is not JSON: {error}") from error
    listed = _object(found, where).get("hooks", {})
    points: dict[str, list[Any]] = {point: [] for point in POINTS.values()}
    others: list[str] = []
    for event, groups in _object(listed, f"{where}: hooks").items():
        if event not in POINTS:
            others.append(event)
            continue
        for number, group in enumerate(_list(groups, f"{where}: hooks.{event}")):
            place = f"{where}: hooks.{event}[{number}]"
            matcher = _object(group, place).get("matcher") or "*"
            if not isinstance(matcher, str):
                raise AgentError("ConfigInvalid", f"{place}.matcher is not text")
            for one in _list(group.get("hooks"), f"{place}.hooks"):
                points[POINTS[event]].append(_hook(_object(one, place), matcher, place, cwd))
    return Hooks(**points), others


def _hook(given: JsonObject, matcher: str, place: str, cwd: str | os.PathLike[str]) -> CommandHook:
    command, timeout = given.get("command"), given.get("timeout", TIMEOUT)
    if given.get("type", "command") != "command":
        raise AgentError("ConfigInvalid", f"{place} is of type {given.get('type')!r}; only command is known")
    if not isinstance(command, str) or not command.strip():
        raise AgentError("ConfigInvalid", f"{place} has no command")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 3600:
        raise AgentError("ConfigInvalid", f"{place}.timeout is {timeout!r}; it is seconds, up to 3600")
    return CommandHook(command, matcher, float(timeout), cwd)


def _object(found: Any, place: str) -> JsonObject:
    if not isinstance(found, dict):
        raise AgentError("ConfigInvalid", f"{place} is not an object")
    return cast("JsonObject", found)


def _list(found: Any, place: str) -> list[Any]:
    if not isinstance(found, list):
        raise AgentError("ConfigInvalid", f"{place} is not a list")
    return cast("list[Any]", found)
