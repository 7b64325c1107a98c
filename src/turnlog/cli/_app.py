"""The command group: the options that commands share, errors as one clear sentence, the standard streams, and
the commands to type next."""

from __future__ import annotations

import codecs
import getpass
import io
import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from turnlog import __version__
from turnlog.contract import AgentError, RunStatus, Store, encode, guard_environment
from turnlog.history import default_store_url, open_store, session_names, show_url

from ._text import plain, plain_json, safe

if TYPE_CHECKING:
    from turnlog.history import SessionState

T = TypeVar("T")

# Answers and listings go to standard output; what happened around them, and errors, to standard error.
out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

FAILED, WAITS, INTERRUPTED = 1, 3, 130
"""Exit codes, beside 0 and click's 2 for a command that was written wrong. 3: a call waits for approval."""


class Commands(click.Group):
    """Loads the module of a command when the command is used: the list of all of them needs none."""

    table = {
        "chat": ("_chat", "Talk to an agent."),
        "code": ("_chat", "Let an agent work on the files of a folder."),
        "run": ("_run", "Ask one question."),
        "map": ("_run", "Ask a question for each line of a file."),
        "resume": ("_run", "Continue a run that was left open."),
        "approve": ("_control", "Decide on calls that wait for approval."),
        "answer": ("_control", "Answer calls that wait for an answer from outside."),
        "abort": ("_control", "End a run, in whichever process it is driven."),
        "pause": ("_control", "Pause a run before its next step."),
        "send": ("_control", "Add a message to a run in progress."),
        "sessions": ("_log", "List the sessions of the store."),
        "show": ("_show", "Show a session's log, an entry a line."),
        "files": ("_files", "List the files of a session, or write them out."),
        "context": ("_log", "Show what the model saw at a call."),
        "compact": ("_compact", "Make what the model sees smaller."),
        "replay": ("_log", "Run a session again and compare every entry."),
        "fork": ("_log", "Start a new session from the past of another."),
        "rerun": ("_rerun", "What if: run on from a step with something changed."),
        "eval": ("_eval", "Try a suite of cases, and compare with the last time."),
        "trace": ("_trace", "Show a session as a trace, or send it to a collector."),
        "export": ("_store", "Write a session to a file."),
        "import": ("_store", "Read a session from a file."),
        "verify": ("_store", "Check that a log is whole and unchanged."),
        "redact": ("_store", "Hide what entries hold from every view."),
        "purge": ("_store", "Erase what entries hold, for good."),
        "delete": ("_store", "Erase a whole session, for good."),
        "memory": ("_memory", "Read and edit the notes that sessions share."),
        "watch": ("_watch", "Watch sessions in the terminal, live; decide on what waits."),
        "serve": ("_serve", "Show sessions in a browser, and serve an agent over HTTP."),
        "mcp": ("_mcp", "Serve an agent over MCP, or trust servers."),
        "acp": ("_acp", "Serve an agent to an editor (Agent Client Protocol)."),
        "doctor": ("_store", "Check what works on this machine."),
        "completion": ("_completion", "Print a script that completes commands in a shell."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.table.items()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, about = self.table.get(cmd_name, (None, ""))
        if module is None:
            return None
        from importlib import import_module

        command: click.Command = getattr(import_module(f"{__package__}.{module}"), f"{cmd_name}_command")
        command.short_help = about
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # click knows of the commands that are loaded
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.table, ctx=ctx
            ) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AgentError as error:
            if error.code == "SessionNotFound" and (near := _near_sessions(ctx, error)):
                names = " or ".join(map(repr, near))
                message = (
                    f"there is no session {error.meta['session_id']!r} in this store; did you mean {names}?"
                )
                raise AgentError(error.code, message, meta=error.meta) from error
            raise


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="turnlog")
def app() -> None:
    """Run agents whose every turn is an entry in an append-only log, and read those logs."""


def _near_sessions(ctx: click.Context, error: AgentError) -> list[str]:
    """The names of sessions that are written much like the one that was not found."""
    from difflib import get_close_matches  # for mistakes alone

    wanted = error.meta.get("session_id")
    if not isinstance(wanted, str) or ctx.meta.get(AGENT):  # an agent's store is its own
        return []
    try:
        known = [name for name, _ in session_names(store_url_of(ctx.meta.get(GIVEN)), limit=5_000)]
    except Exception:  # the error is told without a guess
        return []
    begun = [name for name in known if name.lower().startswith(wanted.lower())]
    return sorted(begun, key=len)[:2] or get_close_matches(wanted, known, n=2)


def remember(key: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback that keeps an option's value for the command group."""

    def keep(ctx: click.Context, given: click.Parameter, value: Any) -> Any:
        ctx.meta[key] = value
        return value

    return keep


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        callback=remember(GIVEN),
        help="sqlite:FILE, jsonl:DIR or postgresql://…; default $TURNLOG_STORE or your own file.",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON lines, for scripts.")(command)


def wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--wait", is_flag=True, help="Wait for a run in progress in another process.")(
        command
    )


def check_session(ctx: click.Context, given: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    if not value.strip():
        raise click.BadParameter("the session's name is empty", ctx, given)
    try:
        value.encode()
    except UnicodeEncodeError as error:  # bytes that are not text come from the shell as half characters
        raise click.BadParameter("the session's name is not UTF-8", ctx, given) from error
    return value


def session_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("session", callback=check_session)(command)


def read_text(text: str) -> str:
    """The argument TEXT; ``-`` stands for standard input."""
    if text == "-":
        try:
            text = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise click.BadParameter(f"standard input is not UTF-8: {error}", param_hint="TEXT") from error
    if not text.strip():
        raise click.BadParameter("the text is empty", param_hint="TEXT")
    return text


def store_url_of(url: str | None) -> str:
    return url or default_store_url()


def with_store(url: str | None, work: Callable[[Store], Awaitable[T]], *, doing: str | None = None) -> T:
    """Open the store, do ``work`` with it, close it. ``doing`` is shown on a terminal meanwhile."""
    import asyncio  # the list of commands needs no event loop

    async def run_it() -> T:
        store = open_store(store_url_of(url))
        try:
            return await work(store)
        finally:
            await store.close()

    if doing is None or not err.is_terminal or err.is_dumb_terminal:
        return asyncio.run(run_it())
    with err.status(f"[dim]{doing}[/]"):
        return asyncio.run(run_it())


async def status_of(store: Store, session: str, status: RunStatus) -> str:
    """``status``, and whether the process is gone that drove the run."""
    if status in ("preparing", "model_running", "tool_running"):
        from turnlog.loop import open_session  # slow to load, and most sessions are at rest

        if await open_session(store, session).driver() is None:
            return f"{status}, nobody drives it"
    return status


def write_json(value: object) -> None:
    """One line of JSON, in UTF-8 on any terminal."""
    line = encode(value)
    if sys.stdout.isatty():
        line = plain_json(line.decode()).encode()
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def entries_of(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def span(ms: float) -> str:
    """A time that something takes, as short as it can be told."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def say(console: Console, text: str) -> None:
    """Print prose: wrapped between words on a terminal, elsewhere one line."""
    console.print(text, soft_wrap=not console.is_terminal)


def say_error(code: str, message: str) -> None:
    say(err, f"[bold red]{code}[/]: {safe(message)}")


def run() -> None:
    """The command, with every way it may end: an exit code, and one sentence where something is wrong."""
    prepare_streams()
    guard_environment(os.environ)
    try:
        app(standalone_mode=False, prog_name="turnlog")
        sys.stdout.flush()
    except (click.exceptions.Abort, KeyboardInterrupt):
        err.print("interrupted")
        sys.exit(INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        say_usage(error)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as leaving:
        sys.exit(leaving.exit_code)
    except AgentError as error:
        say_error(error.code, error.message)
        sys.exit(FAILED)
    except BrokenPipeError:  # the reader of our output has seen enough
        drop_output()
        sys.exit(FAILED)
    except OSError as error:  # a store's and a model's are AgentErrors
        drop_output()
        err.print(plain(f"cannot write the output: {error.strerror or error}"), markup=False)
        sys.exit(FAILED)


def say_usage(error: click.ClickException) -> None:
    """What is wrong with a command, in one line, and where its help is."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else "turnlog"
    message = error.format_message().rstrip(".")
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        message += _near_choice(error)
    elif not message.endswith("?"):  # a guess says more than the help
        message += f"; see {command} --help"
    err.print(plain(f"{command}: {message}"), markup=False)


def _near_choice(error: click.BadParameter) -> str:
    """For a value that is none of the choices: the one that is written much like it."""
    from difflib import get_close_matches  # for mistakes alone

    kind = error.param.type if error.param is not None else None
    found = re.match(r"'(.*)' is not one of", error.message)
    if not isinstance(kind, click.Choice) or found is None:
        return ""
    known = [str(choice) for choice in kind.choices]
    begun = [choice for choice in known if choice.startswith(found[1])]
    near = begun or get_close_matches(found[1], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def login() -> str:
    """The name of the user, for the log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number that has no name
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"


_LOOKALIKES = {"·": "|", "→": "->", "✓": "ok", "✗": "no", "…": "...", "—": "-", "█": "#", "“": '"', "”": '"'}


def prepare_streams() -> None:
    """Before anything is opened or printed."""
    _fill_gaps()
    codecs.register_error("turnlog", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="turnlog")  # a terminal without UTF-8 shows a ? and not a traceback


def drop_output() -> None:
    """Nobody reads it, or it cannot be written: Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill_gaps() -> None:
    # A file that is opened takes the number of a closed stream: a database must not be standard output.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_LOOKALIKES.get(character, "?") for character in found), error.end


CODE = "code"
"""The name of the built-in tools, where others are named by their module."""
STORE = "turnlog.store"
"""Where a command keeps the URL of the store that an agent brought along."""
GIVEN, AGENT = "turnlog.given", "turnlog.agent"
"""Where the command group finds what --store and --agent were."""

SANDBOXES = ("workspace", "landlock", "none")
_PREFIXES = {
    "openai-responses": "openai",
    "openai-chat": "openai-chat",
    "anthropic-messages": "anthropic",
    "gemini": "google",
    "bedrock-converse": "bedrock",
}
"""By the protocol that a log has of a model: what ``-m`` calls it."""
_REPEATED = {
    "agent_name": "--agent",
    "model": "-m",
    "base_url": "--base-url",
    "config": "--config",
    "tool_modules": "-t",
    "workspace": "--workspace",
    "sandbox": "--sandbox",
    "policy": "--policy",
    "mcp_files": "--mcp",
    "store_url": "--store",
}


def go_on(session: str) -> str:
    """The command that talks on in ``session``, as markup."""
    return _with_agent(["turnlog", "chat", "--session", session])


def resume(session: str, state: SessionState | None = None) -> str:
    """The command that continues the open run of ``session``, as markup. Where the options of this command
    do not make an agent, those that can be read from ``state`` are named."""
    words = ["turnlog", "resume", session]
    loaded = click.get_current_context().params.get("agent_name")
    if state is None or loaded or not (recorded := _recorded(state)):
        return _with_agent(words)
    rest = "other options" if "-m" in recorded else "the model and other options"
    return safe(shlex.join([*words, *recorded]) + _store()) + f", and {rest} as before"


def approve(session: str, call: str | None = None) -> str:
    """The command that decides on a call, as markup."""
    words = ["turnlog", "approve", session, *([call] if call else [])]
    return safe(shlex.join(words)) + ("" if call else " CALL") + safe(_place())


def answer(session: str, call: str | None = None) -> str:
    """The command that answers a call, as markup."""
    words = ["turnlog", "answer", session, *([call] if call else [])]
    return safe(shlex.join(words)) + ("" if call else " CALL") + " TEXT" + safe(_place())


def _recorded(state: SessionState) -> list[str]:
    """The options of a run with the built-in tools, as far as its log has them."""
    data, target = state.runtime_data or {}, state.target
    workspace, sandbox = data.get("workspace"), data.get("sandbox")
    if not {"read", "grep"} <= {tool.name for tool in state.tools or ()} or sandbox not in SANDBOXES:
        return []
    prefix = None if target is None else _PREFIXES.get(target.specification)
    if target is not None and target.provider_id == "local":
        prefix = "local"
    model = ["-m", f"{prefix}:{target.model}"] if target is not None and prefix is not None else []
    return [*model, "-t", CODE, "--workspace", str(workspace), "--sandbox", str(sandbox)]


def _with_agent(words: list[str]) -> str:
    params: dict[str, Any] = dict(click.get_current_context().params)
    if CODE in (params.get("tool_modules") or ()):  # the next command may be typed in another folder
        params["workspace"] = os.path.abspath(params.get("workspace") or ".")
    for name, option in _REPEATED.items():
        value: str | tuple[str, ...] | None = params.get(name)
        for one in value if isinstance(value, tuple) else (value,):
            if one:
                words += [option, show_url(one) if name == "store_url" else one]
    if params.get("project") or params.get("trust_project"):  # trust is given once
        words.append("--project")
    elif params.get("project") is False:
        words.append("--no-project")
    return safe(shlex.join(words)) + ("" if "model" in params else ", and the model and tools as before")


def _place() -> str:
    """Where a command that decides finds the session: in the store, or through the agent that has it."""
    agent = click.get_current_context().params.get("agent_name")
    return _store() or (f" {shlex.join(['--agent', agent])}" if agent else "")


def _store() -> str:
    context = click.get_current_context()
    url = context.params.get("store_url") or context.meta.get(STORE)
    return f" {shlex.join(['--store', show_url(url)])}" if url else ""
