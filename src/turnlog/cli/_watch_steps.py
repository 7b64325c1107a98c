"""The steps of a session as the terminal timeline shows them: the conversation, what waits for a person, the
outline, the head, and the rows of a list of sessions."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from turnlog.contract import (
    CompactionSummaryEntry,
    Entry,
    ModelCallFailedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    PendingApproval,
    SessionInfo,
    ToolResultsEntry,
    ToolStartedEntry,
)
from turnlog.history import RunSpan, Step, Timeline
from turnlog.loop import Glance, Log, PendingAnswer

from ._app import count, span
from ._asking import Line, find_edit, number_width
from ._text import result_text
from ._watch_blocks import Paint, fit, on_one_line, words, wrap

_GUTTER, _MARGIN = 8, 10
_FOLDED = {"input": 14, "model": 24, "tool": 1, "recap": 12, "prompt": 1}
"""Lines of a step that are shown until it is opened."""
_DIFF = 14
"""Lines of a change that its card shows until it is opened."""
BARS = " ▁▂▃▄▅▆▇█"
_RUNNING = ("preparing", "model_running", "tool_running")
_STATUS = {
    "awaiting_human": ("■", "wait", "Waits for you"),
    "completed": ("○", "ink2", "Completed"),
    "failed": ("▲", "fail", "Failed"),
    "aborted": ("-", "ink2", "Aborted"),
    "paused": ("-", "ink2", "Paused"),
    "idle": ("○", "ink2", "Idle"),
}
_DECIDED = {
    "approve": "approved",
    "deny": "denied",
    "modify": "changed and approved",
    "abort": "aborted",
    "expire": "lapsed",
}


@dataclass
class Shown:
    """One session as it is looked at: its log, what waits in it, who drives it, and how it is looked at."""

    log: Log
    timeline: Timeline
    steps: list[Step]
    """The steps that pass the filter."""
    status: str = "idle"
    driver: str | None = None
    folder: str = "."
    pending: dict[str, PendingApproval] = field(default_factory=dict[str, PendingApproval])
    questions: dict[str, PendingAnswer] = field(default_factory=dict[str, PendingAnswer])
    branches: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    opened: set[int] = field(default_factory=set[int])
    """Steps that are shown whole, by their first entry."""
    all_open: bool = False
    found: str = ""
    """Words that are looked for."""

    def entries(self, step: Step) -> list[Entry]:
        return [self.log.visible[seq - 1] for seq in step.entries]

    def run_of(self, step: Step) -> RunSpan | None:
        return self.timeline.runs[step.run - 1] if step.run else None

    def child_of(self, step: Step) -> str | None:
        """The session of the agent that a step called."""
        started = [entry for entry in self.entries(step) if isinstance(entry, ToolStartedEntry)]
        return next(
            (each.payload.child_session_id for each in started if each.payload.child_session_id), None
        )

    @property
    def undriven(self) -> bool:
        """A run is open, nobody drives it, and it does not wait for a person."""
        return self.status in _RUNNING and self.driver is None


# ── words and numbers ──


def tokens(number: int | None) -> str:
    if number is None or number < 1_000:
        return str(number or 0)
    return f"{number / 1_000:.1f}k" if number < 100_000 else f"{number / 1_000:.0f}k"


def money(cost: float | None) -> str:
    if cost is None:
        return ""
    return f"${cost:.2f}" if cost >= 0.1 or cost == 0 else f"${cost:.2g}"


def clock(timestamp: str) -> str:
    """The time of day where the reader is."""
    return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S")


def age(timestamp: str) -> str:
    minutes = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds() / 60)
    if minutes < 1:
        return "now"
    if minutes < 60:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{minutes / 1440:.0f} d"


def percent(part: int | None, whole: int | None) -> str:
    return f"{round(100 * part / whole)} %" if part and whole else ""


def status_of(status: str, paint: Paint, *, undriven: bool = False) -> Text:
    mark, colour, word = _STATUS.get(status, ("●", "accent", "Running"))
    if undriven:
        mark, colour, word = "▲", "fail", "Nobody drives it"
    return Text(f"{mark} {word}", style=getattr(paint, colour))


def name_of(step: Step) -> str:
    names = {
        "input": "Input",
        "model": f"Model call {step.call}",
        "tool": step.tool or "Tool",
        "fold": "Fold",
        "recap": "Recap",
        "run_started": f"Run {step.run}",
        "run_ended": f"End of run {step.run}",
        "prompt": "Instructions",
        "tools": "Tools",
        "model_change": "Model",
    }
    return names.get(step.kind, step.kind.replace("_", " "))


def is_problem(step: Step) -> bool:
    """Failed, waits for a person, or needed another attempt."""
    return went_wrong(step) or step.status == "waiting" or (step.attempts or 1) > 1


def went_wrong(step: Step) -> bool:
    return step.status in ("failed", "unknown", "denied") or bool(step.error)


# ── the conversation ──


def step_key(shown: Shown, index: int) -> tuple[object, ...]:
    """What the lines of a step depend on."""
    step = shown.steps[index]
    call = step.tool_call_id or ""
    whole = shown.all_open or step.seq in shown.opened
    asked = call in shown.pending or call in shown.questions
    return step.seq, len(step.entries), step.status, whole, asked, shown.found, len(shown.branches)


def step_lines(shown: Shown, index: int, width: int, paint: Paint) -> list[Text]:
    """One step, with the number of its entry on the left, its time and cost on the right."""
    step = shown.steps[index]
    branches = [
        words(f"⑂ {name}", paint.fork) for seq in step.entries for name in shown.branches.get(seq, ())
    ]
    if step.kind in ("run_started", "run_ended", "fold"):
        first, *rest = _divider(shown, step, width, paint)
        return [first, *(Text.assemble(" " * _GUTTER, name) for name in branches), *rest]
    margin = _MARGIN if width >= 56 else 0
    room = width - _GUTTER - margin
    body = _body(shown, step, room, paint)
    body += branches
    if shown.found:
        for line in body:
            _highlight(line, shown.found, paint)
    took = clock(step.at)[:5] if step.kind == "input" else span(step.ms) if step.ms is not None else ""
    right = [took, money(step.cost)] if margin else []
    mark, style = _mark(step, paint)
    lines: list[Text] = []
    for at, line in enumerate(body or [Text("")]):
        gutter = (
            Text.assemble((f"{step.seq:>5} ", paint.dim), (f"{mark} ", style))
            if at == 0
            else Text(" " * _GUTTER)
        )
        told = right[at] if at < len(right) else ""
        lines.append(Text.assemble(gutter, fit(line, room), (f"{told:>{margin}}", paint.dim)))
    return [*lines, Text("")] if step.kind in ("input", "model", "recap") or len(body) > 2 else lines


def _highlight(line: Text, found: str, paint: Paint) -> None:
    at = line.plain.lower().find(found.lower())
    while at >= 0:
        line.stylize(paint.found, at, at + len(found))
        at = line.plain.lower().find(found.lower(), at + len(found))


def _mark(step: Step, paint: Paint) -> tuple[str, Style]:
    if step.status in ("failed", "unknown"):
        return "▲", paint.fail
    if step.status == "waiting":
        return "■", paint.wait
    if step.kind == "model":
        return "●", paint.accent
    if step.kind == "input":
        return "■", paint.ink
    return ("•", paint.accent) if step.status == "running" else ("•", paint.tool)


def _divider(shown: Shown, step: Step, width: int, paint: Paint) -> list[Text]:
    run = shown.run_of(step)
    if step.kind == "fold":
        freed = f"{tokens(step.before)} → {tokens(step.after)} tokens"
        text = Text.assemble(
            (f"{step.seq:>5} ", paint.dim), ("┄ Fold ", paint.fork), freed, (f" {step.title} ", paint.dim)
        )
        return [_ruled(text, width, "┄", paint.fork), Text("")]
    if step.kind == "run_started":
        more = [
            clock(step.at),
            run.model if run else None,
            run.agent if run and run.agent != "agent" else None,
        ]
        told = words(" · ".join(filter(None, more)), paint.dim)
        return [_ruled(Text.assemble((f"Run {step.run}  ", paint.bold), told, " "), width, "─", paint.line)]
    if step.title == "aborted" and not step.error:
        told = words("The branch begins here; this run stayed in the session it comes from ", paint.dim)
        return [_ruled(told, width, "─", paint.line), Text("")]
    word = {"completed": "Completed", "aborted": "Aborted"}.get(step.title, "Failed")
    facts = [f"{word} in {span(step.ms or 0)}"]
    if run is not None:
        failed = f", {run.failed} failed" if run.failed else ""
        facts += [count(run.calls, "model call"), count(run.tools, "tool call") + failed]
    style = paint.fail if step.status == "failed" else paint.dim
    lines = [_ruled(words(" · ".join(facts) + " ", style), width, "─", paint.line)]
    if step.error:
        lines += [Text.assemble("  ", line) for line in wrap(step.error, width - 4, paint.fail)]
    return [*lines, Text("")]


def _ruled(text: Text, width: int, rule: str, style: Style) -> Text:
    text = text.copy()
    text.truncate(max(width, 1), overflow="ellipsis")
    text.append(rule * max(0, width - cell_len(text.plain)), style=style)
    return text


def _body(shown: Shown, step: Step, width: int, paint: Paint) -> list[Text]:
    entries = shown.entries(step)
    most = None if shown.all_open or step.seq in shown.opened else _FOLDED.get(step.kind, 2)
    match step.kind:
        case "input":
            return _input(step, entries, width, paint, most)
        case "model":
            return _model(step, entries, width, paint, most)
        case "tool":
            return _tool(shown, step, entries, width, paint, most)
        case "recap":
            head = Text.assemble(
                ("Recap ", paint.bold), ("what the model keeps of what came before", paint.dim)
            )
            recap = next(
                (each.payload.summary for each in entries if isinstance(each, CompactionSummaryEntry)), ""
            )
            return [head, *_cut(paint.prose(recap, width), most, paint)]
        case _:
            head = Text.assemble((f"{name_of(step)} ", paint.ink2), on_one_line(step.title, paint.dim))
            return [head] if most is not None else [head, *wrap(step.detail or "", width, paint.dim)]


def _input(step: Step, entries: Sequence[Entry], width: int, paint: Paint, most: int | None) -> list[Text]:
    who = {"correction": "turnlog", "host": "host"}.get(step.detail or "", "You")
    when = {"steering": "while the run was in progress", "correction": "asks for a correction"}
    told = when.get(step.detail or "", "")
    said = next((each.payload.message.text for each in entries if isinstance(each, ModelInputEntry)), "")
    head = Text.assemble((f"{who} ", paint.bold), (told, paint.dim))
    return [head, *wrap(said or step.title, width, paint.ink, most)]


def _model(step: Step, entries: Sequence[Entry], width: int, paint: Paint, most: int | None) -> list[Text]:
    lines: list[Text] = []
    for entry in entries:
        if isinstance(entry, ModelCallFailedEntry):
            failed = entry.payload
            lines += wrap(f"↻ {failed.error.code}: {failed.error.message}", width, paint.fail, 4)
            if failed.partial:
                lines += wrap(failed.partial, width, paint.dim + Style(strike=True), 3)
    output = next((each.payload for each in entries if isinstance(each, ModelOutputEntry)), None)
    if output is None:
        told = "thinking…" if step.status == "running" else step.title
        return [*lines, words(told, paint.dim)] if told else lines
    thought = "\n".join(
        part.payload.text for part in output.message.parts if part.kind == "thinking" and part.payload.text
    )
    if thought:
        lines += wrap(f"⋯ {thought}", width, paint.dim + Style(italic=True), None if most is None else 2)
    if output.message.text:
        return lines + _cut(paint.prose(output.message.text, width), most, paint)
    names = ", ".join(part.payload.tool_name for part in output.message.tool_calls)
    told = f"calls {names}" if names else step.title or ("" if step.status == "failed" else "…")
    return [*lines, fit(on_one_line(told, paint.dim), width)]


def _cut(lines: list[Text], most: int | None, paint: Paint) -> list[Text]:
    if most is None or len(lines) <= most:
        return lines
    return [*lines[: most - 1], Text(f"⋯ {len(lines) - most + 1} more lines", style=paint.dim)]


def _tool(
    shown: Shown, step: Step, entries: Sequence[Entry], width: int, paint: Paint, most: int | None
) -> list[Text]:
    now = "  ● running" if step.status == "running" else ""
    head = Text.assemble(
        words(step.tool or "", paint.bold), " ", on_one_line(step.title, paint.ink2), (now, paint.accent)
    )
    call = step.tool_call_id or ""
    if (asked := shown.pending.get(call)) is not None:
        return [head, *card(asked, shown.folder, width, paint, None if most is None else _DIFF)]
    if (question := shown.questions.get(call)) is not None:
        return [head, *question_card(question, width, paint)]
    told: list[str] = []
    if step.decision is not None:
        after = f" after {span(step.waited)}" if step.waited else ""
        told.append(f"{_DECIDED.get(step.decision, step.decision)} by {step.by}{after}")
    if step.status == "waiting":
        told.append(f"waits: {step.detail or ''}")
    elif step.detail:
        told.append(step.detail)
    style = (
        paint.fail
        if step.status in ("failed", "unknown")
        else paint.wait
        if step.status == "waiting"
        else paint.dim
    )
    lines = [head]
    if most is None and (text := output_of(step, entries)):
        lines += [on_one_line(told[0], style)] if step.decision is not None else []
        lines += wrap(text, width, style)
    elif told:
        lines += wrap(" · ".join(told), width, style, 2)
    if (child := shown.child_of(step)) is not None:
        lines.append(Text.assemble(("└ ", paint.line), words(f"{child}  c opens its session", paint.accent)))
    return lines


def output_of(step: Step, entries: Sequence[Entry]) -> str:
    """What a tool returned, as text."""
    for entry in entries:
        if isinstance(entry, ToolResultsEntry):
            for part in entry.payload.message.tool_results:
                if part.payload.tool_call_id == step.tool_call_id:
                    return result_text(part)
    return ""


# ── what waits for a person ──


def card(
    asked: PendingApproval, folder: str | None, width: int, paint: Paint, most: int | None = None
) -> list[Text]:
    """A call that waits for a decision: what runs, why it asks, and how to decide."""
    why = asked.reason or "a person decides"
    lapses = f" · lapses at {clock(asked.expires_at)}" if asked.expires_at else ""
    head = Text.assemble((" ■ Waits for your decision ", paint.asks), words(f" {why}{lapses}", paint.wait))
    lines = [*wrap(head, width), *call_lines(asked, folder, width, paint, most)]
    return [*lines, Text("a approve · d deny…", style=paint.wait)]


def call_lines(
    asked: PendingApproval, folder: str | None, width: int, paint: Paint, most: int | None = None
) -> list[Text]:
    """A call to the last character; a change of a text as a difference."""
    rest, edit = find_edit(asked.arguments, folder)
    lines: list[Text] = []
    for name, value in rest.items():
        text = value if isinstance(value, str) else _json(value)
        gap = "\n" if "\n" in text else " "
        lines += wrap(Text.assemble((f"{name}", paint.dim), gap, words(text, paint.ink)), width)
    if edit:
        plus, minus = (sum(line.sign == sign for line in edit) for sign in "+-")
        lines.append(Text.assemble((f"+{plus} ", paint.add), (f"-{minus}", paint.fail)))
        lines += diff_lines(edit, width, paint)
    return _cut(lines, most, paint)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def diff_lines(edit: Sequence[Line], width: int, paint: Paint) -> list[Text]:
    numbers = number_width(edit)
    lines: list[Text] = []
    for line in edit:
        style = {"+": paint.added, "-": paint.removed}.get(line.sign, paint.dim)
        number = f"{line.number or '':>{numbers}} " if numbers else ""
        room = max(width - len(number) - 2, 4)
        for at, part in enumerate(wrap(line.text, room, style) or [Text("")]):
            left = f"{number if at == 0 else ' ' * len(number)}{line.sign if at == 0 else ' '} "
            row = Text.assemble((left, style), part)
            row.pad_right(max(0, width - cell_len(row.plain)))
            row.stylize(style)
            lines.append(row)
    return lines


def question_card(asked: PendingAnswer, width: int, paint: Paint) -> list[Text]:
    to = f" for {asked.asked.by}" if asked.asked.by else ""
    head = Text.assemble((" ■ Waits for an answer ", paint.asks), words(to, paint.wait))
    lines = [fit(head, width), *wrap(asked.question, width, paint.ink)]
    if asked.asked.answer_schema is not None:
        lines += wrap(f"the answer fits {_json(asked.asked.answer_schema)}", width, paint.dim, 6)
    return [*lines, Text("a answer…", style=paint.wait)]


# ── the outline ──


def outline_of(steps: Sequence[Step]) -> list[int]:
    """The places of the steps that an outline names."""
    return [
        at
        for at, step in enumerate(steps)
        if step.kind in ("run_started", "input", "tool", "fold") or is_problem(step)
    ]


def outline_line(step: Step, width: int, paint: Paint) -> Text:
    mark = (
        ("▲", paint.fail)
        if went_wrong(step)
        else ("■", paint.wait)
        if step.status == "waiting"
        else (" ", paint.dim)
    )
    if step.kind == "run_started":
        text = Text(f"Run {step.run}", style=paint.bold)
    elif step.kind == "input":
        text = on_one_line(step.title, paint.ink2)
    elif step.kind == "fold":
        text = Text(f"  fold, {tokens(step.before)} → {tokens(step.after)}", style=paint.fork)
    elif step.kind == "tool":
        text = Text.assemble(
            "  ", words(step.tool or "", paint.ink2), " ", on_one_line(step.title, paint.dim)
        )
    else:
        text = Text.assemble("  ", words(name_of(step), paint.ink2))
    return Text.assemble(fit(text, width - 2), " ", mark)


# ── the head ──


def head_lines(session: str, shown: Shown, width: int, paint: Paint) -> list[Text]:
    timeline = shown.timeline
    usage = timeline.usage
    facts = [
        f"{timeline.entries} {'entry' if timeline.entries == 1 else 'entries'}",
        count(sum(run.calls for run in timeline.runs), "call"),
        money(usage.cost) if usage else "",
        f"{cached} cached"
        if usage and (cached := percent(usage.cached_input_tokens, usage.input_tokens))
        else "",
        f"{span(timeline.active_ms)} active",
    ]
    status = status_of(shown.status, paint, undriven=shown.undriven)
    title = on_one_line(timeline.title or session, paint.bold)
    if timeline.title:
        title = Text.assemble(title, "  ", on_one_line(session, paint.dim))
    told = words(" · ".join(filter(None, facts)), paint.dim)
    room = width - cell_len(status.plain) - cell_len(told.plain) - 6
    if room >= min(cell_len(title.plain), 40):
        return [Text.assemble(" ", fit(title, room), "  ", status, "  ", told, " ")]
    first = Text.assemble(" ", fit(title, width - cell_len(status.plain) - 3), " ", status, " ")
    return [first, Text.assemble(" ", fit(told, width - 2))]


# ── a list of sessions ──


def session_lines(
    info: SessionInfo, status: Text, glance: Glance | None, width: int, paint: Paint
) -> list[Text]:
    """Status, title, what happened last, a small strip, entries, cost, age."""
    title = on_one_line(info.title or info.about or info.session_id, paint.bold)
    if info.title or info.about:
        title = Text.assemble(title, "  ", on_one_line(info.session_id, paint.dim))
    cost = money(glance.cost) if glance is not None else ""
    numbers = Text.assemble(
        (f"{info.entries:>7}", paint.ink2),
        (f"{cost:>9}", paint.ink2),
        (f"{age(info.updated_at):>8}", paint.dim),
    )
    small = _small_strip(glance, paint) if width >= 110 else Text("")
    left = 19 if width >= 64 else 2
    mark = status if left > 2 else Text(status.plain[:1], style=status.style)
    room = max(width - left - cell_len(small.plain) - cell_len(numbers.plain) - 3, 8)
    fork = f"branch of {info.parent_session_id} at {info.forked_at} · " if info.parent_session_id else ""
    model = f" · {glance.model}" if glance is not None and glance.model else ""
    last = on_one_line(f"{fork}{glance.last if glance is not None else '…'}{model}", paint.dim)
    return [
        Text.assemble(fit(mark, left), fit(title, room), "  ", small, numbers),
        Text.assemble(" " * left, fit(last, max(width - left - 2, 8))),
        Text(""),
    ]


def _small_strip(glance: Glance | None, paint: Paint) -> Text:
    strip = Text("")
    if glance is not None:
        tallest = max((math.log1p(ms) for ms, _ in glance.buckets), default=1.0) or 1.0
        styles = {"failed": paint.fail, "waiting": paint.wait, "running": paint.accent, "model": paint.accent}
        for ms, worst in glance.buckets:
            strip.append(BARS[1 + round(math.log1p(ms) / tallest * 7)], style=styles.get(worst, paint.tool))
    strip.append(" " * (28 - len(strip.plain)))
    return strip
