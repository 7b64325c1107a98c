"""The contract kit for context managers: run it against one of yours.

::

    print(check_context_manager(MyContext))

It plays sessions with tools, parallel results, folds, a redaction and a refused prompt, and looks at every
request that the manager builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from turnlog.context import ContextBuildResult, ContextInput, ContextManager, ContextUpdateInput
from turnlog.contract import (
    AgentError,
    Custom,
    Entry,
    EntryPayload,
    Message,
    MessagePart,
    ModelInput,
    ModelInvocationDescriptor,
    ModelOutput,
    Redaction,
    SystemPrompt,
    ToolCall,
    ToolCallPart,
    ToolOutcome,
    ToolResults,
    ToolsChange,
    ToolSpec,
    encode,
    seal,
    text_part,
    tool_result_part,
    user_message,
)
from turnlog.history import visible_entries

MakeContextManager: TypeAlias = Callable[[], ContextManager]
"""Makes the manager under test; called often, and every one must be like the other."""

_TARGET = ModelInvocationDescriptor(provider_id="kit", specification="kit", model="kit-1")
_BREAKS = {"fold", "redaction", "purge", "system_prompt", "tools_change", "branch_summary", "runtime_init"}
_SECRET = "the vault opens with heliotrope"
_LONG = "\n".join(f"row {n}: item_{n} costs {n * 7} and stands in aisle {n % 13}" for n in range(400))


def check_context_manager(make: MakeContextManager) -> list[str]:
    """Run every check of the context manager promise; returns their names.

    Raises ``AssertionError`` that names the check and what the manager got wrong.
    """
    checks = (
        the_prompt_and_the_last_words_are_sent,
        building_changes_nothing,
        the_same_entries_give_the_same_bytes,
        what_it_wants_appended_leads_to_what_it_built,
        the_wire_only_grows,
        calls_and_results_stay_together,
        bookkeeping_is_not_sent,
        what_was_redacted_is_not_sent,
        a_refused_prompt_becomes_smaller,
    )
    done: list[str] = []
    for check in checks:
        try:
            check(make)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from error
        except Exception as error:
            raise AssertionError(f"{check.__name__}: {type(error).__name__} came out: {error}") from error
        done.append(check.__name__)
    return done


class _Play:
    """A session that a manager subscribes to, and the entries it has so far."""

    def __init__(self, make: MakeContextManager) -> None:
        self.make = make
        self.manager = make()
        self.entries: list[Entry] = []
        self._calls = 0

    def add(self, payload: EntryPayload) -> Entry:
        last = self.entries[-1] if self.entries else None
        seq = len(self.entries) + 1
        sealed = seal(
            payload,
            id=f"{seq:032x}",
            previous_id=last.id if last else None,
            previous_hash=last.hash if last else "",
            session_id="kit",
            seq=seq,
            timestamp=f"2026-01-01T00:{seq // 60 % 60:02d}:{seq % 60:02d}.000Z",
            run_id="run",
        )
        self.entries.append(sealed.entry)
        self.manager.step(sealed.entry)
        return sealed.entry

    def say(self, text: str) -> Entry:
        message = user_message(text, run_id="run")
        return self.add(ModelInput(message=message, sections=self.manager.input_sections(message)))

    def answer(self, text: str, *results: str) -> None:
        """An answer that calls a tool once for each result; the results come in the reverse order."""
        names = [f"call_{self._calls + at}" for at in range(len(results))]
        self._calls += len(results)
        parts: list[MessagePart] = [text_part(text)]
        for name in names:
            call = ToolCall(tool_call_id=name, tool_name="read", arguments={}, raw_args_text="{}")
            parts.append(ToolCallPart(payload=call))
        self.add(
            ModelOutput(
                message=Message(run_id="run", role="assistant", parts=parts, timestamp=""),
                invocation=_TARGET,
                model_call_index=1,
                attempt=1,
                finish_reason="tool_calls" if results else "stop",
            )
        )
        for name, result in reversed(list(zip(names, results, strict=True))):
            outcome = ToolOutcome(
                tool_call_id=name,
                tool_name="read",
                status="success",
                sections=self.manager.result_sections(result),
            )
            message = Message(run_id="run", role="tool", parts=[tool_result_part(name, result)], timestamp="")
            self.add(ToolResults(message=message, outcomes=[outcome]))

    def build(self, **fields: object) -> ContextBuildResult:
        """Build as the loop does: append what is wanted, and keep what was built."""
        built = self.manager.build_context(ContextInput(target=_TARGET, **fields))  # type: ignore[arg-type]
        for payload in built.entries_to_append:
            self.add(payload)
        return built


def _play(make: MakeContextManager, turns: int = 3) -> Iterator[tuple[_Play, ContextBuildResult]]:
    """A session of some turns; yields each request before it is answered."""
    play = _Play(make)
    play.add(SystemPrompt(text="Answer briefly."))
    play.add(ToolsChange(tools=[_spec("read")]))
    for turn in range(turns):
        play.say(f"question {turn}: what is in aisle {turn}?")
        yield play, play.build(turn_end=True)
        play.answer(f"looking {turn}", f"first {turn}\n{_LONG}", f"second {turn}\n{_LONG[::-1]}")
        yield play, play.build()
        play.answer(f"answer {turn}")


def _spec(name: str) -> ToolSpec:
    return ToolSpec(name=name, description=f"does {name}", parameter_schema={"type": "object"})


def _wire(built: ContextBuildResult) -> list[bytes]:
    head = encode((built.context.system_prompt, list(built.context.tool_specs)))
    return [head, *(encode((message.role, message.parts)) for message in built.context.messages)]


def _text(messages: Sequence[Message]) -> str:
    return encode([message.parts for message in messages]).decode()


def the_prompt_and_the_last_words_are_sent(make: MakeContextManager) -> None:
    for turn, (_, built) in enumerate(_play(make)):
        prompt = built.context.system_prompt or ""
        assert "Answer briefly." in prompt, f"the system prompt is {prompt!r}"
        names = [spec.name for spec in built.model_tool_specs]
        assert names == ["read"], f"the log offers the tool 'read', the request offers {names}"
        said = f"question {turn // 2}"
        assert said in _text(built.model_messages), f"the user's newest words, {said!r}, are not sent"
        assert built.context.context_hash, "there is no hash of the context"


def building_changes_nothing(make: MakeContextManager) -> None:
    for play, built in _play(make):
        before = [encode(entry) for entry in play.entries]
        asked = ContextInput(target=_TARGET, system_prompt="Answer at length.", tool_specs=[_spec("write")])
        first, second = play.manager.build_context(asked), play.manager.build_context(asked)
        assert _wire(first) == _wire(second), "the same question, asked twice, gets two requests"
        kinds = [type(payload).__name__ for payload in first.entries_to_append]
        assert {"SystemPrompt", "ToolsChange"} <= set(kinds), f"what differs from the log is not in {kinds}"
        again = play.manager.build_context(ContextInput(target=_TARGET, plan=False))
        assert _wire(again) == _wire(built), "what nobody appended shows in the next request"
        assert before == [encode(entry) for entry in play.entries], "an entry of the log was changed"


def the_same_entries_give_the_same_bytes(make: MakeContextManager) -> None:
    for play, _ in _play(make):
        stepped = _wire(play.manager.build_context(ContextInput(target=_TARGET, plan=False)))
        fresh = make()
        fresh.refold(play.entries)
        folded = _wire(fresh.build_context(ContextInput(target=_TARGET, plan=False)))
        assert stepped == folded, f"stepping through {len(play.entries)} entries and refolding them differ"


def what_it_wants_appended_leads_to_what_it_built(make: MakeContextManager) -> None:
    for play, built in _play(make, turns=6):
        again = play.manager.build_context(ContextInput(target=_TARGET, plan=False))
        assert not again.entries_to_append, "what was appended is asked for again"
        assert _wire(again) == _wire(built), "the request differs once its entries are in the log"
        assert again.context.context_hash == built.context.context_hash, "the hash differs"


def the_wire_only_grows(make: MakeContextManager) -> None:
    last: tuple[list[bytes], int] | None = None
    for play, built in _play(make, turns=6):
        wire, seen = _wire(built), len(play.entries)
        if last is not None and not _BREAKS & {entry.kind for entry in play.entries[last[1] :]}:
            common = wire[: len(last[0])]
            assert common == last[0], f"what was sent before entry {seen} changed without a break entry"
        last = (wire, seen)


def calls_and_results_stay_together(make: MakeContextManager) -> None:
    for play, built in _play(make, turns=6):
        _check_pairs(built.model_messages)
        update = play.manager.compute_context_updates(ContextUpdateInput(target=_TARGET, manual=True))
        for payload in update.entries_to_append:
            play.add(payload)
        _check_pairs(play.build(plan=False).model_messages)


def _check_pairs(messages: Sequence[Message]) -> None:
    owed: list[str] = []
    for message in messages:
        found = [part.payload.tool_call_id for part in message.tool_results]
        assert found == owed, f"the calls {owed} are followed by the results {found}"
        owed = [part.payload.tool_call_id for part in message.tool_calls]
    assert not owed, f"the calls {owed} have no result"


def bookkeeping_is_not_sent(make: MakeContextManager) -> None:
    for play, _ in _play(make):
        play.add(Custom(name="note", data={"text": _SECRET}))
        shown = _text(play.build().model_messages)
        assert _SECRET not in shown, "the content of a custom entry is sent"


def what_was_redacted_is_not_sent(make: MakeContextManager) -> None:
    for play, _ in _play(make):
        secret = play.say(_SECRET)
        play.answer("noted")
        assert _SECRET in _text(play.build().model_messages)
        hidden = play.add(Redaction(entry_ids=[secret.id]))
        play.manager.refold(visible_entries(play.entries))
        shown = _text(play.build().model_messages)
        assert _SECRET not in shown, f"what entry {hidden.seq} redacts is sent"
        play.manager.refold(visible_entries(play.entries))


def a_refused_prompt_becomes_smaller(make: MakeContextManager) -> None:
    for play, built in _play(make, turns=4):
        before = sum(map(len, _wire(built)))
        try:
            update = play.manager.compute_context_updates(
                ContextUpdateInput(target=_TARGET, overflow_hint=True, overflow_step=1)
            )
        except AgentError as error:
            if error.code != "ContextOverflow":
                raise
            continue
        for payload in update.entries_to_append:
            play.add(payload)
        after = sum(map(len, _wire(play.build(plan=False))))
        assert after < before, f"{before} bytes were refused, and {after} are sent instead"
