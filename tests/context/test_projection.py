"""What a log becomes, and what it never becomes."""

from __future__ import annotations

import msgspec
import pytest

from context.context_log import CLAUDE, GPT, Log, call
from turnlog.context import Projection, diff_contexts, plan_fold, recall_text
from turnlog.contract import (
    HINTS,
    LIVE_SCREEN,
    AgentError,
    Image,
    ImagePart,
    LevelOfDetailSections,
    ModelCallFailed,
    ModelInput,
    Purge,
    RunEnded,
    RuntimeInit,
    encode,
    text_part,
    user_message,
)


def texts(projection: Projection) -> list[str]:
    return [encode(message.parts).decode() for message in projection.emit(CLAUDE).messages]


@pytest.mark.spec("C-10")
def test_everything_is_sent_and_bookkeeping_never() -> None:
    log = Log()
    log.run()
    log.prompt("be brief")
    log.tools("read", "write")
    log.user("hello")
    log.custom()
    log.started("x")
    error = AgentError("ModelTimeout", "slow").to_info()
    log.add(ModelCallFailed(model_call_index=1, attempt=1, error=error, shown=3))
    log.output("hi")
    context = Projection.of(log.entries).emit(CLAUDE)
    assert context.system_prompt == "be brief"
    assert [tool.name for tool in context.tool_specs] == ["read", "write"]
    assert [(message.role, message.text) for message in context.messages] == [
        ("user", "hello"),
        ("assistant", "hi"),
    ]


def test_results_are_one_message_in_call_order_once_all_are_in() -> None:
    log = Log()
    log.user("go")
    log.output("reading", call("a"), call("b"), call("c"))
    projection = Projection.of(log.entries)
    assert len(projection.emit(CLAUDE).messages) == 2
    for entry in (log.results(c="three"), log.user("also this"), log.results(b="two")):
        projection.step(entry)
    assert len(projection.emit(CLAUDE).messages) == 2
    forced = projection.emit(CLAUDE, force=True).messages
    assert [part.payload.tool_call_id for part in forced[2].tool_results] == ["b", "c"]
    assert forced[3].text == "also this"
    assert len(projection.emit(CLAUDE).messages) == 2
    projection.step(log.results(a="one"))
    messages = projection.emit(CLAUDE).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user"]
    assert [part.payload.content for part in messages[2].tool_results] == ["one", "two", "three"]


def test_emitting_again_gives_the_same_objects_and_costs_what_is_new() -> None:
    log = Log()
    log.user("one")
    projection = Projection.of(log.entries)
    first = projection.emit(CLAUDE)
    projection.step(log.output("two"))
    projection.step(log.user("three"))
    second = projection.emit(CLAUDE)
    assert second.messages[0] is first.messages[0]
    assert second.stats.new_messages == 2
    assert second.context_hash != first.context_hash
    assert second.context_hash == Projection.of(log.entries).emit(CLAUDE).context_hash


@pytest.mark.spec("C-10")
def test_sections_come_behind_the_text_as_headings() -> None:
    log = Log()
    shown = LevelOfDetailSections(
        live=[(LIVE_SCREEN, "3 todos"), (HINTS, "disk full")], summary=[("", "s")], gist=[("", "g")]
    )
    log.user("go", shown)
    log.output(call("a"), call("b"))
    log.results(a={"n": 1}, b=("text", shown))
    messages = Projection.of(log.entries).emit(CLAUDE).messages
    assert messages[0].text == "go# [LiveScreen]\n\n3 todos\n\n# [Hints]\n\ndisk full"
    assert messages[2].tool_results[0].payload.content == {"n": 1}
    assert messages[2].tool_results[1].payload.content == (
        "text\n\n# [LiveScreen]\n\n3 todos\n\n# [Hints]\n\ndisk full"
    )


@pytest.mark.spec("C-7")
def test_runtime_data_and_overrides_are_in_the_system_prompt() -> None:
    log = Log()
    log.prompt("be brief")
    log.add(RuntimeInit(data={"cwd": "/w", "os": "linux"}))
    projection = Projection.of(log.entries)
    assert projection.system_prompt == 'be brief\n\n# [Runtime]\n\n{"cwd":"/w","os":"linux"}'
    projection.step(log.run(system_prompt_override="be long"))
    assert projection.system_prompt == 'be long\n\n# [Runtime]\n\n{"cwd":"/w","os":"linux"}'
    projection.step(log.run())
    assert projection.system_prompt == 'be brief\n\n# [Runtime]\n\n{"cwd":"/w","os":"linux"}'


@pytest.mark.spec("P-6")
def test_thinking_goes_back_to_its_maker_while_the_wire_before_it_is_the_same() -> None:
    log = Log()
    log.prompt("one")
    asked = log.user("hard question")
    projection = Projection.of(log.entries)
    projection.step(log.output("a", thinking="hm", wire_hash=projection.emit(CLAUDE).context_hash))
    projection.step(log.output("b", thinking="hm", wire_hash="another wire"))
    assert [part.kind for part in projection.emit(CLAUDE).messages[1].parts] == ["thinking", "text"]
    assert [part.kind for part in projection.emit(CLAUDE).messages[2].parts] == ["text"]
    assert [part.kind for part in projection.emit(GPT).messages[1].parts] == ["text"]
    log.redact(asked)
    projection = Projection.of(log.visible())
    assert [part.kind for part in projection.emit(CLAUDE).messages[1].parts] == ["text"]


@pytest.mark.spec("H-9")
def test_redacted_words_are_gone_and_pairs_stay() -> None:
    log = Log()
    said = log.user("my password is hunter2")
    made = log.output("hunter2 noted", call("a", secret="hunter2"))
    got = log.results(a="hunter2 stored")
    log.redact(said, made, got)
    projection = Projection.of(log.visible())
    wire = encode(projection.emit(CLAUDE).messages).decode()
    assert "hunter2" not in wire
    assert wire.count("[redacted]") == 2
    assert [message.role for message in projection.emit(CLAUDE).messages] == ["user", "assistant", "tool"]


@pytest.mark.spec("H-9")
def test_a_purged_log_gives_the_same_context_before_and_after_it_is_read_again() -> None:
    log = Log()
    log.prompt("be brief")
    said = log.user("my password is hunter2")
    made = log.output("noted", call("a", secret="hunter2"), thinking="hunter2")
    log.results(a="done")
    log.add(Purge(entry_ids=[said.id, made.id]))
    projection = Projection.of(log.visible())
    assert "hunter2" not in encode(projection.emit(CLAUDE).messages).decode()
    blank_input = msgspec.structs.replace(said.payload.message, parts=[text_part("[redacted]")])
    blank_output = msgspec.structs.replace(
        made.payload.message, parts=[text_part("[redacted]"), call("a")], meta=None
    )
    erased = {
        said.id: msgspec.structs.replace(said.payload, message=blank_input),
        made.id: msgspec.structs.replace(made.payload, message=blank_output),
    }
    reread = [
        msgspec.structs.replace(entry, payload=erased[entry.id], purged_digest="d")
        if entry.id in erased
        else entry
        for entry in log.entries
    ]
    assert Projection.of(reread).emit(CLAUDE).context_hash == projection.emit(CLAUDE).context_hash


@pytest.mark.spec("H-9")
def test_a_redacted_prompt_and_redacted_tools_are_gone_too() -> None:
    log = Log()
    prompt = log.prompt("the admin password is hunter2")
    tools = log.tools("read")
    log.user("hi")
    log.redact(prompt, tools)
    context = Projection.of(log.visible()).emit(CLAUDE)
    assert context.system_prompt == "[redacted]"
    assert [(tool.name, tool.description) for tool in context.tool_specs] == [("read", "[redacted]")]


def test_pictures_count_by_their_tokens_and_go_through_unchanged() -> None:
    log = Log()
    picture = ImagePart(payload=Image(mime_type="image/png", data="A" * 400_000))
    log.add(ModelInput(message=user_message([text_part("see"), picture], run_id="run_1")))
    log.output(call("a"))
    log.results(a=[text_part("and this"), picture])
    context = Projection.of(log.entries).emit(CLAUDE)
    assert context.messages[0].parts[1] == picture
    assert 2_900 < context.stats.estimated_tokens < 3_300


def failed(partial: str | None) -> ModelCallFailed:
    error = AgentError("RunAborted", "stopped by the user").to_info()
    return ModelCallFailed(model_call_index=1, attempt=1, error=error, shown=3, partial=partial)


@pytest.mark.spec("C-2")
def test_what_was_shown_of_an_answer_before_its_run_ended_is_known_to_the_next_turn() -> None:
    log = Log()
    log.user("tell me about the bridge")
    log.started("hash")
    log.add(failed("The bridge was built in 1894 by"))
    projection = Projection.of(log.entries)
    assert [message.role for message in projection.emit(CLAUDE).messages] == ["user"]
    before = projection.emit(CLAUDE)
    projection.step(log.add(RunEnded(status="aborted")))
    projection.step(log.user("by whom?"))
    after = projection.emit(CLAUDE)
    assert [(message.role, message.text) for message in after.messages[1:]] == [
        ("assistant", "The bridge was built in 1894 by"),
        ("user", "[The answer above was interrupted before it was complete.]"),
        ("user", "by whom?"),
    ]
    assert diff_contexts(before, after).grown
    assert recall_text(log.entries, "#3") == "The bridge was built in 1894 by"
    log.redact(log.entries[2])
    assert "1894" not in encode(list(Projection.of(log.visible()).emit(CLAUDE).messages)).decode()


@pytest.mark.parametrize("partial", [None, "The bridge was"])
def test_an_attempt_that_was_made_again_is_not_shown(partial: str | None) -> None:
    log = Log()
    log.user("tell me about the bridge")
    log.started("hash")
    log.add(failed(partial))
    if partial is not None:
        log.started("hash")
    log.add(RunEnded(status="aborted"))
    assert [message.role for message in Projection.of(log.entries).emit(CLAUDE).messages] == ["user"]


def test_a_fold_keeps_the_words_of_an_interrupted_answer() -> None:
    log = Log()
    log.user("tell me about the bridge")
    log.started("hash")
    log.add(failed("The bridge was built in 1894 by"))
    log.add(RunEnded(status="aborted"))
    for n in range(6):
        log.user(f"step {n}")
        log.output(f"answer {n} " * 200)
    projection = Projection.of(log.entries)
    fold = plan_fold(projection, target=CLAUDE, reason="overflow", overflow_step=2)
    assert fold is not None
    assert "#3 assistant: The bridge was built in 1894 by [interrupted]" in fold.segments[0].text
