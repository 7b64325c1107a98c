"""The tool that runs commands, and the jobs that it leaves running."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
from dataclasses import dataclass, field

from turnlog.contract import AgentError, EndReason, Process, ProcessEnd, ProcessOutput

from .._answer import ToolError, ToolResult
from .._context import ToolContext
from .._tool import Tool, tool
from ._changes import size_in_words, told
from ._files import READS

_HEAD, _TAIL = 300_000, 700_000
_LONGEST = 3600.0
_MOST_JOBS = 100
_LONGEST_WAIT = 120.0
_TELL_EVERY = 0.2
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_ENDED: dict[EndReason, str] = {
    "exited": "ended",
    "killed": "was stopped",
    "timed_out": "did not end in time and was stopped",
    "memory": "was stopped: it used more memory than it may",
    "processes": "was stopped: it started more processes than it may",
    "output": "was stopped: it wrote more than it may",
}


class Output:
    """What a process wrote: the beginning and the end of it, however long it is."""

    def __init__(self) -> None:
        self._head, self._tail = "", ""
        self._decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")
        }
        self.length = 0
        """Characters so far, those that were left out counted."""

    def add(self, piece: ProcessOutput) -> str:
        text = self._decoders[piece.stream].decode(piece.data)
        self.length += len(text)
        room = _HEAD - len(self._head)
        self._head += text[:room]
        self._tail += text[room:]
        if len(self._tail) > 2 * _TAIL:  # cut now and then: a copy for every piece would be slow
            self._tail = self._tail[-_TAIL:]
        return text

    def text(self, since: int = 0) -> str:
        """From the character ``since`` on, with a note where some was left out."""
        self._tail = self._tail[-_TAIL:]
        head, tail = self._head[since:], self._tail
        if (behind := since - (self.length - len(tail))) > 0:
            tail = tail[behind:]
        left_out = self.length - since - len(head) - len(tail)
        note = f"\n[… {left_out:,} characters left out here …]\n" if left_out else ""
        return _COLOUR.sub("", head + note + tail).replace("\r\n", "\n")


@dataclass
class Job:
    """A command that runs beside the conversation."""

    id: str
    command: str
    process: Process
    output: Output = field(default_factory=Output)
    reading: asyncio.Task[None] | None = None
    seen: int = 0
    """Characters of its output that the model was shown."""
    told: bool = False
    """Whether the model knows that it has ended."""

    @property
    def end(self) -> ProcessEnd | None:
        return self.process.end

    async def read(self) -> None:
        async with self.process:
            with contextlib.suppress(AgentError):  # what it wrote until then is there
                async for piece in self.process.output():
                    self.output.add(piece)
            await self.process.wait()


class Shell:
    """The commands of an agent: each session has its own jobs. They end with the runtime, and with the event
    loop that they were started in."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, Job]] = {}

    def tools(self) -> list[Tool]:
        return [self.shell, self.job_output, self.job_stop]

    @tool(requires_runtime=True, timeout=None, annotations={"runs_commands": True})
    async def shell(
        self,
        ctx: ToolContext,
        command: str,
        timeout: float = 120.0,
        background: bool = False,
        cwd: str | None = None,
    ) -> ToolResult:
        """Run a command in a shell, in the workspace. Every command starts in a new shell.

        Args:
            command: What to run, as it would be typed.
            timeout: Seconds after which it is stopped; 3600 at most. A command in the background has none.
            background: Do not wait for it: answer with the name of a job, for job_output and job_stop.
            cwd: The folder to run it in, relative to the workspace.
        """
        runtime = ctx.require_runtime()
        if not command.strip():
            raise ToolError("the command is empty")
        if not 0 < timeout <= _LONGEST:
            raise ToolError(f"timeout is {timeout:g}; it is in seconds, above 0 and at most {_LONGEST:g}")
        if background:
            return await self._start(ctx, command, cwd)
        output = Output()
        pending, told_at = "", ctx.clock.monotonic()
        async with await runtime.run(command, cwd=cwd, timeout=timeout) as process:
            await process.close_stdin()
            async for piece in process.output():
                pending += output.add(piece)
                if (now := ctx.clock.monotonic()) - told_at >= _TELL_EVERY:
                    ctx.progress(pending)
                    pending, told_at = "", now
            end = await process.wait()
        if pending:
            ctx.progress(pending)
        return self._result(ctx, command, output, end)

    def _result(self, ctx: ToolContext, command: str, output: Output, end: ProcessEnd) -> ToolResult:
        text = output.text().rstrip("\n")
        line = _end_in_words(end)
        said = "\n".join(part for part in (text, f"[{line}]", *self._news(ctx)) if part)
        last = text.rpartition("\n")[2].strip()[:200]
        wrote = f"; it wrote {size_in_words(output.length)}, last: {last}" if last else ""
        return ToolResult(
            said,
            summary=f"ran `{_short(command)}`: {line}{wrote}",
            gist=f"ran `{_short(command)[:80]}`: {line}",
            is_error=end.reason != "exited",
        )

    async def _start(self, ctx: ToolContext, command: str, cwd: str | None) -> ToolResult:
        jobs = self._jobs.setdefault(ctx.session_id, {})
        if sum(job.end is None for job in jobs.values()) >= _MOST_JOBS:
            raise ToolError(f"{_MOST_JOBS} jobs are running already; stop one with job_stop")
        for name in [name for name, job in jobs.items() if job.end is not None and job.told][:-_MOST_JOBS]:
            del jobs[name]
        process = await ctx.require_runtime().run(command, cwd=cwd)
        await process.close_stdin()
        job = Job(_free_name(jobs), command, process)
        job.reading = asyncio.create_task(job.read(), name=f"turnlog {job.id}")
        jobs[job.id] = job
        words = f"{job.id} runs in the background: {_short(command)}"
        return told(words, "\n".join([words, *self._news(ctx)]))

    def _news(self, ctx: ToolContext) -> list[str]:
        """Jobs that have ended and of which the model does not know it."""
        lines: list[str] = []
        for job in self._jobs.get(ctx.session_id, {}).values():
            if job.end is not None and not job.told:
                job.told = True
                lines.append(f"[{job.id} {_end_in_words(job.end)}; read what it wrote with job_output]")
        return lines

    @tool(requires_runtime=True, timeout=None, annotations=READS)
    async def job_output(self, ctx: ToolContext, job: str | None = None, wait: float = 0.0) -> ToolResult:
        """What a job in the background wrote since you last asked, and whether it has ended.

        Args:
            job: The name of the job; without it all jobs are listed.
            wait: Seconds to wait for its end, 120 at most.
        """
        if job is None:
            return self._list(ctx)
        found = self._find(ctx, job)
        if wait > 0 and found.end is None and found.reading is not None:
            await _wait(ctx, found.reading, min(wait, _LONGEST_WAIT))
        text = found.output.text(found.seen).rstrip("\n")
        found.seen = found.output.length
        found.told = found.told or found.end is not None
        state = "is still running" if found.end is None else _end_in_words(found.end)
        words = f"{found.id} {state}"
        return told(words, "\n".join([text or "[nothing new]", f"[{words}]", *self._news(ctx)]))

    @tool(requires_runtime=True, annotations={"runs_commands": True})
    async def job_stop(self, ctx: ToolContext, job: str) -> ToolResult:
        """Stop a job in the background, with everything that it started.

        Args:
            job: The name of the job.
        """
        found = self._find(ctx, job)
        await found.process.kill()
        if found.reading is not None:
            await asyncio.wait({found.reading})
        found.told = True
        return told(f"{found.id} {_end_in_words(found.end) if found.end else 'was stopped'}")

    def _list(self, ctx: ToolContext) -> ToolResult:
        jobs = self._jobs.get(ctx.session_id, {}).values()
        lines: list[str] = []
        for job in jobs:
            state = "is running" if job.end is None else _end_in_words(job.end)
            lines.append(f"{job.id} {state}: {_short(job.command)}")
            job.told = job.told or job.end is not None
        return told(f"{len(lines)} jobs", "\n".join(lines) or "[no jobs]")

    def _find(self, ctx: ToolContext, name: str) -> Job:
        jobs = self._jobs.get(ctx.session_id, {})
        if name in jobs:
            return jobs[name]
        known = ", ".join(jobs) or "none"
        raise ToolError(
            f"there is no job {name!r}; the jobs are: {known}. A job ends with the process that started it: "
            "if this session was continued later, start it again"
        )


def _short(command: str) -> str:
    return " ".join(command.split())[:200]


def _free_name(jobs: dict[str, Job]) -> str:
    return f"job-{max((int(name.removeprefix('job-')) for name in jobs), default=0) + 1}"


def _end_in_words(end: ProcessEnd) -> str:
    if end.reason == "exited":
        return f"ended with exit code {end.exit_code}"
    return _ENDED[end.reason]


async def _wait(ctx: ToolContext, task: asyncio.Task[None], seconds: float) -> None:
    """Until the task has ended or the time is over, whichever comes first; the task keeps running."""
    timer = asyncio.ensure_future(ctx.clock.sleep(seconds))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
