"""One step in detail: what the model saw, the raw entries, the tool, times and costs, the widgets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from turnlog.contract import (
    ApprovalRequestedEntry,
    Entry,
    JsonObject,
    Message,
    ModelOutputEntry,
    ToolCallPart,
    ToolResultPart,
    ToolResultsEntry,
    ToolStartedEntry,
    encode,
)
from turnlog.history import Step
from turnlog.loop import Saw, screen_at

from ._app import count, span
from ._asking import find_edit
from ._text import plain_json, result_text
from ._watch_blocks import Paint, fit, words, wrap
from ._watch_steps import Shown, clock, diff_lines, money, name_of, output_of, percent, tokens

Tab: TypeAlias = Literal["saw", "raw", "tool", "time", "widgets"]
TABS: tuple[Tab, ...] = ("saw", "raw", "tool", "time", "widgets")
_NAMES = {
    "saw": "What the model saw",
    "raw": "Raw",
    "tool": "Tool",
    "time": "Timing & cost",
    "widgets": "Widgets",
}
_SHORT = {"saw": "Saw", "raw": "Raw", "tool": "Tool", "time": "Time", "widgets": "Widgets"}
_MESSAGE = 12
"""Lines of a message that are shown until whole texts are asked for."""

Block: TypeAlias = Callable[[int], Sequence[Text]]


def tab_of(step: Step, tab: Tab) -> Tab:
    return "saw" if tab == "tool" and step.kind != "tool" else tab


def head_of(step: Step, tab: Tab, width: int, paint: Paint) -> list[Text]:
    """The name of the step, and its tabs."""
    model = step.detail if step.kind == "model" else None
    took = span(step.ms) if step.ms is not None else None
    facts = filter(None, (clock(step.at), model, money(step.cost), took))
    title = Text.assemble((f"#{step.seq} ", paint.dim), words(name_of(step), paint.bold))
    tabs = Text("")
    names = _NAMES if width >= 58 else _SHORT
    for number, each in enumerate(TABS, 1):
        if each == "tool" and step.kind != "tool":
            continue
        style = paint.accent + Style(underline=True) if each == tab else paint.dim
        tabs.append(f"{number} ", style=paint.dim)
        tabs.append(names[each], style=style)
        tabs.append("  ")
    return [fit(title, width), fit(words(" · ".join(facts), paint.dim), width), fit(tabs, width), Text("")]


def detail_blocks(
    shown: Shown, step: Step, saw: Saw | None, tab: Tab, paint: Paint, *, everything: bool, whole: bool
) -> list[Block]:
    tab = tab_of(step, tab)
    blocks: list[Block] = [lambda width: head_of(step, tab, width, paint)]
    match tab:
        case "saw":
            return blocks + _saw(shown, step, saw, paint, everything=everything, whole=whole)
        case "raw":
            return blocks + [_raw(entry, paint) for entry in shown.entries(step)]
        case "tool":
            return blocks + _tool(shown, step, paint)
        case "time":
            return [*blocks, lambda width: _facts(shown, step, width, paint)]
        case "widgets":
            screen = screen_at(shown.log, step.end)
            none = "No widget had anything on the screen here."
            return [*blocks, lambda width: wrap(screen or none, width, paint.ink if screen else paint.dim)]


# ── what the model saw ──


def _saw(
    shown: Shown, step: Step, saw: Saw | None, paint: Paint, *, everything: bool, whole: bool
) -> list[Block]:
    if saw is None:
        return [lambda width: wrap("No model call belongs to this step yet.", width, paint.dim)]
    view, known = saw.view, saw.known
    most = None if whole else _MESSAGE
    asked = next((each for each in shown.timeline.steps if each.call == view.call), None)
    blocks: list[Block] = [lambda width: _sent(saw, asked, width, paint, everything=everything)]
    names = _tool_names(view.messages)
    if everything:
        if prompt := view.system_prompt:
            blocks.append(
                lambda width: _message("", "Instructions", prompt, "", width, most, paint.ink2, paint)
            )
        if view.tool_specs:
            specs = "\n".join(f"{spec.name}: {spec.description or ''}" for spec in view.tool_specs)
            blocks.append(lambda width: _message("", "Tools", specs, "", width, most, paint.ink2, paint))
    elif known:
        before = sum(origin.tokens for origin in view.origins[:known])
        told = f"{count(known, 'message')} the model had seen before, unchanged"
        blocks.append(lambda width: _message("", "", told, tokens(before), width, most, paint.dim, paint))
    for at in range(0 if everything else known, len(view.messages)):
        blocks.append(_seen(saw, at, names, most, paint))
    if step.kind == "model":
        for entry in shown.entries(step):
            if isinstance(entry, ModelOutputEntry):
                blocks.append(_answered(entry, step, most, paint))
    match_words = (
        "matches the log: this is byte for byte what was sent."
        if view.matches
        else "differs from the log: a part of it was hidden since."
        if view.redacted
        else "differs from the log: it was made with other options."
    )
    proof = f"Context hash {view.context_hash[:8]}…{view.context_hash[-4:]} {match_words}"
    blocks.append(lambda width: [Text(""), *wrap(proof, width, paint.dim)])
    return blocks


def _sent(saw: Saw, asked: Step | None, width: int, paint: Paint, *, everything: bool) -> list[Text]:
    view = saw.view
    news = sum(origin.tokens for origin in view.origins[saw.known :])
    used = asked.input if asked is not None and asked.input else sum(part.tokens for part in view.gauge)
    line = Text.assemble((f"{used:,}", paint.bold), f" tokens sent to call {view.call}  ")
    if saw.previous is not None:
        line.append(f"+{news:,} new", style=paint.add)
    if asked is not None and (cached := percent(asked.cached, asked.input)):
        line.append(f"  {cached} from cache", style=paint.dim)
    since = f"New since call {saw.previous}" if saw.previous else "New"
    both = Text.assemble(
        (since, paint.dim if everything else paint.accent + Style(underline=True)),
        "  ",
        (
            f"Everything, {len(view.messages)}",
            paint.accent + Style(underline=True) if everything else paint.dim,
        ),
        ("  . switches · E whole texts", paint.dim),
    )
    return [*wrap(line, width), *wrap(both, width), Text("")]


def _seen(saw: Saw, at: int, names: dict[str, str], most: int | None, paint: Paint) -> Block:
    message, view = saw.view.messages[at], saw.view
    origin = view.origins[at] if at < len(view.origins) else None
    fresh = at >= saw.known and saw.previous is not None
    who = {"user": "You", "assistant": "Model"}.get(message.role, "Tool")
    place, size = "", ""
    if origin is not None:
        place = f"{origin.first}-{origin.last}" if origin.last > origin.first else str(origin.first)
        size = tokens(origin.tokens)
        if origin.kind not in ("user", "assistant", "tool results"):
            who += f" {origin.kind}"
        if origin.folded:
            who += " (folded)"
    style = paint.add if fresh else paint.dim
    return lambda width: _message(
        place, who, text_of(message, names), size, width, most, style, paint, new=fresh
    )


def _answered(entry: ModelOutputEntry, step: Step, most: int | None, paint: Paint) -> Block:
    answer = entry.payload

    def lines(width: int) -> list[Text]:
        head = [Text(""), Text("What it answered", style=paint.bold)]
        said = text_of(answer.message, {})
        size = tokens(step.output) if step.output is not None else ""
        who = f"Model {answer.finish_reason}"
        return [*head, *_message(str(entry.seq), who, said, size, width, most, paint.accent, paint)]

    return lines


def _message(
    place: str,
    who: str,
    text: str,
    size: str,
    width: int,
    most: int | None,
    edge: Style,
    paint: Paint,
    *,
    new: bool = False,
) -> list[Text]:
    """One message, with a bar on its left; ``new`` ones also have a plus, for those who see no colour."""
    room = max(width - 4, 4)
    lines: list[Text] = []
    if who:
        left = Text.assemble((f"{place} " if place else "", paint.dim), words(who, paint.bold))
        lines.append(Text.assemble(fit(left, room - cell_len(size) - 1), " ", (size, paint.dim)))
    lines += wrap(text, room, paint.ink if who else paint.dim, most)
    if not who and size:
        lines[0] = Text.assemble(fit(lines[0], room - cell_len(size) - 1), " ", (size, paint.dim))
    sign = "+" if new else " "
    return [
        Text.assemble((f"▎{sign} " if at == 0 else "▎  ", edge), line) for at, line in enumerate(lines)
    ] + [Text("")]


def _tool_names(messages: Sequence[Message]) -> dict[str, str]:
    return {
        part.payload.tool_call_id: part.payload.tool_name for each in messages for part in each.tool_calls
    }


def text_of(message: Message, names: dict[str, str]) -> str:
    """All of a message as text: words, calls and results."""
    said: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            said.append(f"→ {part.payload.tool_name} {part.payload.raw_args_text}")
        elif isinstance(part, ToolResultPart):
            name = names.get(part.payload.tool_call_id)
            said.append(f"{name}: {result_text(part)}" if name else result_text(part))
        elif part.kind == "text":
            said.append(part.payload.text)
        elif part.kind == "thinking":
            said.append(f"(thinks) {part.payload.text or ''}")
        else:
            said.append(f"[{part.kind}]")
    return "\n".join(said)


# ── the other tabs ──


def json_of(entry: Entry, *, indent: int | None = 2) -> str:
    """An entry in full, as JSON that moves no cursor wherever it is pasted."""
    return plain_json(json.dumps(json.loads(encode(entry)), ensure_ascii=False, indent=indent))


def _raw(entry: Entry, paint: Paint) -> Block:
    head = Text.assemble((f"#{entry.seq} ", paint.dim), (entry.kind, paint.bold))
    return lambda width: [head, *wrap(json_of(entry), width, paint.ink2), Text("")]


def _tool(shown: Shown, step: Step, paint: Paint) -> list[Block]:
    entries = shown.entries(step)
    arguments = _arguments(shown, step, entries)
    outcome = next(
        (
            each
            for entry in entries
            if isinstance(entry, ToolResultsEntry)
            for each in entry.payload.outcomes
            if each.tool_call_id == step.tool_call_id
        ),
        None,
    )

    def given(width: int) -> list[Text]:
        lines = [Text("Arguments", style=paint.bold)]
        if arguments is None:
            return [*lines, *wrap("They are in the model's answer before this step.", width, paint.dim)]
        # The file is not what it was when a past call changed it.
        rest, edit = find_edit(arguments, shown.folder if step.status == "waiting" else None)
        if rest:
            lines += wrap(json.dumps(rest, ensure_ascii=False, indent=2), width, paint.ink)
        return [*lines, *diff_lines(edit, width, paint), Text("")]

    def returned(width: int) -> list[Text]:
        wrong = step.status in ("failed", "unknown")
        status = outcome.status if outcome is not None else ""
        head = Text.assemble(
            ("What went wrong " if wrong else "What it returned ", paint.bold), (status, paint.dim)
        )
        text = output_of(step, entries)
        lines = [head, *wrap(text or "Nothing yet.", width, paint.ink if text else paint.dim)]
        if outcome is not None and outcome.artifact:
            lines += wrap(f"The whole output is kept apart: {outcome.artifact}", width, paint.dim)
        if outcome is not None and outcome.traceback:
            lines += [Text(""), *wrap(outcome.traceback, width, paint.fail)]
        return lines

    return [given, returned]


def _arguments(shown: Shown, step: Step, entries: Sequence[Entry]) -> JsonObject | None:
    for entry in entries:
        match entry:
            case ToolStartedEntry() if entry.payload.arguments is not None:
                return entry.payload.arguments
            case ApprovalRequestedEntry():
                return entry.payload.arguments
            case _:
                pass
    for entry in reversed(shown.log.visible[: step.seq]):
        if isinstance(entry, ModelOutputEntry):
            for part in entry.payload.message.tool_calls:
                if part.payload.tool_call_id == step.tool_call_id:
                    return part.payload.arguments
    return None


def _facts(shown: Shown, step: Step, width: int, paint: Paint) -> list[Text]:
    run = shown.run_of(step)
    cached = percent(step.cached, step.input)
    facts = {
        "Began": f"{clock(step.at)}  {step.at}",
        "Took": span(step.ms) if step.ms is not None else "",
        "Waited for a person": span(step.waited) if step.waited is not None else "",
        "Attempts": str(step.attempts or ""),
        "Input": f"{step.input:,} tokens" if step.input is not None else "",
        "From the cache": f"{step.cached:,} tokens, {cached}" if step.cached and cached else "",
        "Output": f"{step.output:,} tokens" if step.output is not None else "",
        "Cost": money(step.cost),
        "Decided": f"{step.decision} by {step.by}" if step.decision else "",
        "Error": step.error or "",
        "Run": " · ".join(filter(None, (str(run.number), run.status, span(run.ms), money(run.cost))))
        if run is not None
        else "",
        "Entries": " ".join(f"#{seq}" for seq in step.entries),
    }
    lines: list[Text] = []
    for name, value in facts.items():
        if value:
            told = wrap(value, max(width - 21, 8), paint.ink)
            lines += [
                Text.assemble((f"{name if at == 0 else '':<21}", paint.dim), line)
                for at, line in enumerate(told)
            ]
    return lines
