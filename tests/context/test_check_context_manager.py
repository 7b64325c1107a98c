"""The contract kit for context managers: ours pass, and each broken promise is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pytest

from turnlog.context import (
    ContextBuildResult,
    ContextInput,
    ContextManager,
    ContextOptions,
    ContextStats,
    ContextUpdateInput,
    ContextUpdateResult,
    ModelContext,
    ProjectionContext,
)
from turnlog.contract import CustomEntry, Entry, Message, digest, encode, user_message
from turnlog.testing import check_context_manager


@pytest.mark.spec("C-1")
@pytest.mark.parametrize("options", [ContextOptions(), ContextOptions(window=8_000)])
def test_ours_passes(options: ContextOptions) -> None:
    assert len(check_context_manager(lambda: ProjectionContext(options))) == 9


class Whole(ContextManager):
    """The simplest manager there can be: every message, never folded."""

    def __init__(self) -> None:
        self._inner = ProjectionContext(ContextOptions(fold=False))

    def step(self, entry: Entry) -> None:
        self._inner.step(entry)

    def refold(self, entries: Iterable[Entry]) -> None:
        self._inner.refold(entries)

    def build_context(self, input: ContextInput) -> ContextBuildResult:
        return self._inner.build_context(input)

    def compute_context_updates(self, input: ContextUpdateInput) -> ContextUpdateResult:
        return self._inner.compute_context_updates(input)


def test_one_with_the_four_needed_methods_passes() -> None:
    check_context_manager(Whole)


class Changed(ProjectionContext):
    """Changes what ours builds."""

    def build_context(self, input: ContextInput) -> ContextBuildResult:
        built = super().build_context(input)
        return ContextBuildResult(
            context=self.change(built.context),
            entries_to_append=self.wanted(built),
            compacted=built.compacted,
        )

    def wanted(self, built: ContextBuildResult) -> Sequence[Any]:
        return built.entries_to_append

    def change(self, context: ModelContext) -> ModelContext:
        return context


def with_messages(context: ModelContext, messages: Sequence[Message]) -> ModelContext:
    return context._replace(
        messages=messages, context_hash=digest(encode([(one.role, one.parts) for one in messages]))
    )


class Forgetful(Changed):
    def change(self, context: ModelContext) -> ModelContext:
        return with_messages(context, [one for one in context.messages if one.role != "user"])


class Counting(Changed):
    asked = 0

    def change(self, context: ModelContext) -> ModelContext:
        self.asked += 1
        return with_messages(context, [*context.messages, user_message(f"asked {self.asked} times")])


class Historic(Changed):
    """Remembers whether it was stepped or refolded."""

    origin = "stepped"

    def refold(self, entries: Iterable[Entry]) -> None:
        super().refold(entries)
        self.origin = "refolded"

    def change(self, context: ModelContext) -> ModelContext:
        return with_messages(context, [*context.messages, user_message(self.origin)])


class Silent(Changed):
    def wanted(self, built: ContextBuildResult) -> Sequence[Any]:
        return ()


class Sliding(Changed):
    def change(self, context: ModelContext) -> ModelContext:
        return with_messages(context, context.messages[-4:])


class Splitting(Changed):
    def change(self, context: ModelContext) -> ModelContext:
        return with_messages(context, [one for one in context.messages if not one.tool_results])


class Talkative(Changed):
    notes = ""

    def step(self, entry: Entry) -> None:
        super().step(entry)
        if isinstance(entry, CustomEntry):
            self.notes += str(entry.payload.data)

    def change(self, context: ModelContext) -> ModelContext:
        return with_messages(
            context, [*context.messages, *([user_message(self.notes)] if self.notes else [])]
        )


class Unforgetting(ProjectionContext):
    def refold(self, entries: Iterable[Entry]) -> None:
        found = list(entries)
        if not any(entry.kind == "redaction" for entry in found):
            super().refold(found)

    def step(self, entry: Entry) -> None:
        if entry.kind != "redaction":
            super().step(entry)


class Stubborn(ProjectionContext):
    def compute_context_updates(self, input: ContextUpdateInput) -> ContextUpdateResult:
        stats: ContextStats = self.build_context(ContextInput(target=input.target, plan=False)).stats
        return ContextUpdateResult(stats=msgspec.structs.replace(stats))


BROKEN: list[tuple[Callable[[], ContextManager], str]] = [
    (Forgetful, "the_prompt_and_the_last_words_are_sent: the user's newest words"),
    (Counting, "building_changes_nothing: the same question, asked twice"),
    (Historic, "the_same_entries_give_the_same_bytes: stepping"),
    (Silent, "building_changes_nothing: what differs from the log"),
    (Sliding, "the_wire_only_grows: what was sent before"),
    (Splitting, "calls_and_results_stay_together"),
    (Talkative, "bookkeeping_is_not_sent"),
    (Unforgetting, "what_was_redacted_is_not_sent"),
    (Stubborn, "a_refused_prompt_becomes_smaller"),
]


@pytest.mark.parametrize(("make", "words"), BROKEN)
def test_a_broken_promise_is_named(make: Callable[[], ContextManager], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_context_manager(make)
