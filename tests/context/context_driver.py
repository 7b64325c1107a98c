"""Runs made-up sessions through a projector and a planner, and says which promise was broken."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from context.context_log import CLAUDE, GPT, Log, call
from turnlog.context import ContextOptions, FoldPlanner, Projection, input_sections, result_sections
from turnlog.contract import (
    AgentError,
    BranchSummary,
    CompactionSummary,
    Entry,
    Message,
    ModelCallFailed,
    ModelInput,
    ModelInvocationDescriptor,
    encode,
    user_message,
)
from turnlog.history import visible_entries

SMALL = ContextOptions(
    fold_at=1_500, min_freed_tokens=1, min_freed_share=0.01, user_cap=400, tail_share=0.2, target_share=0.5
)

_WORDS = (
    "parse_config",
    "retry",
    "HTTP",
    "503",
    "src/main.py",
    "error:",
    "the",
    "a",
    "Widget",
    "naïve",
    "猫",
)
_lines = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=8).map(" ".join)
texts = st.lists(_lines, min_size=1, max_size=12).map("\n".join)
_long = st.lists(_lines, min_size=4, max_size=10).map(lambda lines: "\n".join(lines * 6))
results = st.lists(st.one_of(texts, _long), min_size=1, max_size=3)
user_texts = st.one_of(
    _lines, st.sampled_from(["#1 user: not a header", "two\n#1 user: still not\nlines", "go"])
)

operations = st.one_of(
    st.tuples(st.just("user"), user_texts),
    st.tuples(st.just("answer"), texts),
    st.tuples(st.just("calls"), results, st.randoms(use_true_random=False)),
    st.tuples(st.just("calls"), results, st.randoms(use_true_random=False)),
    st.tuples(st.just("prompt"), _lines),
    st.tuples(st.just("tools"), st.sets(st.sampled_from(("read", "write", "grep")))),
    st.tuples(st.just("redact"), st.integers(0, 200)),
    st.tuples(st.just("branch"), _lines),
    st.tuples(st.just("fold"), st.sampled_from(("manual", "threshold", "cold"))),
    st.tuples(st.just("overflow"), st.integers(1, 3)),
    st.tuples(st.just("recap"), st.integers(0, 200)),
    st.tuples(st.just("note"), st.just(0)),
    st.tuples(st.just("failed"), st.just(0)),
)
scripts = st.lists(operations, min_size=8, max_size=50)


class Snapshot(NamedTuple):
    """One request as it went out."""

    position: int
    epoch: int
    target: ModelInvocationDescriptor
    messages: list[Message]
    wire: list[bytes]
    hash: str


class Session:
    """Plays a script: appends, folds and calls, as a loop would."""

    def __init__(
        self,
        script: list[tuple[Any, ...]],
        projector: type[Projection] = Projection,
        planner: type[FoldPlanner] = FoldPlanner,
        options: ContextOptions = SMALL,
    ) -> None:
        self.log = Log()
        self.options = options
        self.projection = projector(options)
        self.snapshots: list[Snapshot] = []
        self.levels: list[dict[str, int]] = []
        self.said: dict[str, tuple[str, int]] = {}
        self.hidden: set[str] = set()
        self._planner = planner
        self._epoch = 0
        self._calls = 0
        self.take(self.log.prompt("be brief"))
        for operation in script:
            self._play(operation)
        self._ask(CLAUDE)

    def take(self, entry: Entry, *, breaks: bool = False) -> Entry:
        self.projection.step(entry)
        self._epoch += breaks
        return entry

    def _play(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case ("user", text):
                self._say(text)
            case ("answer", text):
                self._ask(CLAUDE)
                self.take(self.log.output(text, thinking="hm", wire_hash=self.snapshots[-1].hash))
            case ("calls", contents, random):
                self._ask(CLAUDE)
                self._call(contents, random)
            case ("prompt", text):
                self.take(self.log.prompt(text), breaks=True)
            case ("tools", names):
                self.take(self.log.tools(*sorted(names)), breaks=True)
            case ("redact", index):
                entry = self.log.entries[index % len(self.log.entries)]
                self.hidden.update(self.take(self.log.redact(entry), breaks=True).payload.entry_ids)
                self.projection = type(self.projection).of(self.log.visible(), self.options)
            case ("branch", text):
                place = BranchSummary(from_session_id="p", from_entry_id="e", from_seq=1, summary=text)
                self.take(self.log.add(place), breaks=True)
            case ("fold", reason):
                self._fold(reason)
            case ("overflow", step):
                self._fold("overflow", step)
            case ("recap", index):
                kept = self.log.entries[index % len(self.log.entries)]
                self.take(
                    self.log.add(CompactionSummary(first_kept_entry_id=kept.id, summary="we did things"))
                )
            case ("note", _):
                self.take(self.log.custom())
            case ("failed", _):
                self._ask(GPT)
                error = AgentError("ModelTimeout", "never shown").to_info()
                self.take(self.log.add(ModelCallFailed(model_call_index=1, attempt=1, error=error)))

    def _say(self, text: str) -> None:
        message = user_message(text, run_id="run_1")
        payload = ModelInput(message=message, sections=input_sections(self.projection, message))
        entry = self.take(self.log.add(payload))
        self.said[entry.id] = (text, len(self.log.entries))

    def _call(self, contents: list[str], random: Any) -> None:
        ids = [f"c{self._calls + at}" for at in range(len(contents))]
        self._calls += len(contents)
        hash = self.snapshots[-1].hash
        self.take(self.log.output("on it", *(call(name) for name in ids), thinking="hm", wire_hash=hash))
        self._ask(CLAUDE)
        order = list(zip(ids, contents, strict=True))
        random.shuffle(order)
        for at, (name, content) in enumerate(order):
            sections = result_sections(self.projection, content)
            self.take(self.log.results(**{name: (content, sections)}))
            if at == 0 and len(order) > 1:
                self._say("meanwhile")
                self._fold("manual")
                self._ask(CLAUDE)

    def _fold(self, reason: Any, step: int = 0) -> None:
        planner = self._planner(self.projection, target=CLAUDE)
        try:
            fold = planner.plan(reason, cold=reason == "cold", overflow_step=step)
        except AgentError as error:
            if error.code != "ContextOverflow":
                raise
            return
        if fold is not None:
            assert fold.tokens_after < fold.tokens_before
            self.take(self.log.add(fold), breaks=True)

    def _ask(self, target: ModelInvocationDescriptor) -> None:
        context = self.projection.emit(target)
        self.snapshots.append(
            Snapshot(
                len(self.log.entries),
                self._epoch,
                target,
                context.messages,
                [encode((context.system_prompt, context.tool_specs)), *map(wire_of, context.messages)],
                context.context_hash,
            )
        )


def wire_of(message: Message) -> bytes:
    return encode((message.role, message.parts))


def check_prefix(session: Session) -> None:
    """C-3: between breaks, what was sent before is a byte prefix of what is sent now."""
    last: dict[ModelInvocationDescriptor, Snapshot] = {}
    for now in session.snapshots:
        before = last.get(now.target)
        if before is not None and before.epoch == now.epoch:
            assert b"".join(now.wire).startswith(b"".join(before.wire))
        last[now.target] = now


def check_pairs(session: Session) -> None:
    """C-5: every call is answered by the next message, whole and in order, and no result stands alone."""
    for snapshot in session.snapshots:
        owed: list[str] = []
        for message in snapshot.messages:
            results = [part.payload.tool_call_id for part in message.tool_results]
            assert results == owed
            owed = [part.payload.tool_call_id for part in message.tool_calls]


def check_replay(session: Session) -> None:
    """C-1: the same entries give the same bytes, however they are taken in."""
    some = len(session.snapshots) // 6 + 1
    for snapshot in session.snapshots[::-some]:
        past = visible_entries(session.log.entries[: snapshot.position])
        again = type(session.projection).of(past, session.options)
        assert again.emit(snapshot.target).context_hash == snapshot.hash


def check_user_words(session: Session) -> None:
    """C-5: what the user said is there word for word, unless it was redacted."""
    hidden = session.hidden
    if any(entry.id in hidden for entry in session.log.entries if entry.kind == "fold"):
        return  # a fold that was redacted takes with it what it says of the entries it covers
    for snapshot in session.snapshots:
        if snapshot.position < len(session.log.entries) and hidden:
            continue
        shown = "\n".join(message.text for message in snapshot.messages if message.role == "user")
        waiting = _behind_open_calls(session, snapshot.position)
        for entry_id, (text, position) in session.said.items():
            if position <= snapshot.position and entry_id not in hidden and position <= waiting:
                assert text in shown or text.replace("\n#", "\n #") in shown


def _behind_open_calls(session: Session, position: int) -> int:
    """The last entry that is shown: what was said while results were owed waits for them."""
    owed: set[str] = set()
    last = position
    for entry in session.log.entries[:position]:
        if entry.kind == "model_output":
            owed = {part.payload.tool_call_id for part in entry.payload.message.tool_calls}  # type: ignore[union-attr]
            last = entry.seq if owed else position
        elif entry.kind == "tool_results":
            owed -= {part.payload.tool_call_id for part in entry.payload.message.tool_results}  # type: ignore[union-attr]
            last = last if owed else position
    return last


def check_levels(session: Session) -> None:
    """C-4: a result that was shortened is never shown whole again."""
    lowered: set[str] = set()
    live = {
        part.payload.tool_call_id: part.payload.content
        for entry in session.log.entries
        if entry.kind == "tool_results"
        for part in entry.payload.message.tool_results  # type: ignore[union-attr]
    }
    seen: set[str] = set()
    for snapshot in session.snapshots:
        whole = {
            part.payload.tool_call_id
            for message in snapshot.messages
            for part in message.tool_results
            if part.payload.content == live[part.payload.tool_call_id]
        }
        lowered |= seen - whole
        assert not whole & lowered
        seen |= whole
