"""The past cannot be changed in memory: not by an adapter, a hook, a widget or a tool that tries."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contract.wire_examples import ENTRIES, PAYLOADS, VALUES
from turnlog.contract import Chunk, Entry, EntryPayload, decode, encode, freeze, request_of, seal, thaw
from turnlog.loop import Agent, Hooks, replay
from turnlog.models import ModelRequest
from turnlog.testing import ScriptedCall, ScriptedModel, Turn
from turnlog.tools import tool
from turnlog.widgets import RenderContext, Widget


def attack(value: Any) -> int:
    """Try to change every map and list in ``value``; how many there were."""
    if isinstance(value, msgspec.Struct):
        return sum(attack(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, dict):
        with suppress(TypeError):
            value["hacked"] = True
        with suppress(TypeError):
            value.clear()
        return 1 + sum(map(attack, value.values()))
    if isinstance(value, list | tuple):
        with suppress(TypeError, AttributeError):
            value.append("hacked")  # pyright: ignore[reportAttributeAccessIssue]
        with suppress(TypeError, AttributeError):
            value.clear()  # pyright: ignore[reportAttributeAccessIssue]
        return isinstance(value, list) + sum(map(attack, value))
    return 0


@pytest.mark.spec("M-9")
@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: type(payload).__name__)
def test_an_entry_cannot_be_changed_once_it_is_made(payload: EntryPayload) -> None:
    meta = {"trace": {"ids": [1, 2]}}
    sealed = seal(
        payload,
        id="e1",
        previous_id=None,
        previous_hash="",
        session_id="s",
        seq=1,
        timestamp="t",
        meta=meta,
    )
    assert attack(sealed.entry) >= 3
    assert encode(sealed.entry) == sealed.stored.body
    assert sealed.entry == decode(sealed.stored.body, Entry)
    assert meta == {"trace": {"ids": [1, 2]}}


@pytest.mark.spec("M-9")
@pytest.mark.parametrize(
    "value", [*ENTRIES.values(), *VALUES.values()], ids=lambda value: type(value).__name__
)
def test_a_value_that_was_read_can_be_frozen_and_stays_what_it_is(value: Any) -> None:
    body = encode(value)
    again = decode(body, type(value))
    assert freeze(again) is again
    assert freeze(again) == decode(body, type(value))
    attack(again)
    assert encode(again) == body


CHANGES: list[Callable[[Any], object]] = [
    lambda it: it["map"].__setitem__("a", 1),
    lambda it: it["map"].__delitem__("a"),
    lambda it: it["map"].update(a=1),
    lambda it: it["map"].setdefault("z", 1),
    lambda it: it["map"].pop("a"),
    lambda it: it["map"].popitem(),
    lambda it: it["map"].clear(),
    lambda it: it["map"].__ior__({"z": 1}),
    lambda it: it["list"].append(1),
    lambda it: it["list"].extend([1]),
    lambda it: it["list"].insert(0, 1),
    lambda it: it["list"].remove(1),
    lambda it: it["list"].pop(),
    lambda it: it["list"].clear(),
    lambda it: it["list"].sort(),
    lambda it: it["list"].reverse(),
    lambda it: it["list"].__setitem__(0, 1),
    lambda it: it["list"].__delitem__(0),
    lambda it: it["list"].__iadd__([1]),
    lambda it: it["list"].__imul__(2),
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_way_to_change_frozen_json_is_refused(change: Callable[[Any], object]) -> None:
    frozen = freeze({"map": {"a": [1]}, "list": [1, {"b": 2}]})
    with pytest.raises(TypeError, match="part of a record and cannot be changed"):
        change(frozen)
    assert frozen == {"map": {"a": [1]}, "list": [1, {"b": 2}]}


def test_frozen_json_is_read_copied_and_pickled_like_any_other() -> None:
    plain = {"map": {"a": [1]}, "list": [1, {"b": 2}]}
    frozen = freeze(plain)
    assert frozen == plain and frozen is not plain and freeze(frozen) is frozen
    assert json.dumps(frozen) == json.dumps(plain)
    for copied in (thaw(frozen), copy.deepcopy(frozen)):
        copied["map"]["a"].append(2)
        copied["list"][1]["b"] = 3
        assert copied == {"map": {"a": [1, 2]}, "list": [1, {"b": 3}]}
    assert frozen == plain
    again = pickle.loads(pickle.dumps(frozen))
    assert again == plain
    with pytest.raises(TypeError):
        again["map"]["a"].append(2)
    assert {**frozen, "more": 1}["more"] == 1 and [*frozen["list"], 3][-1] == 3


class HostileModel(ScriptedModel):
    async def _stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        for message in request.messages:
            attack(message)
        attack(request.tool_specs)
        async for chunk in super()._stream(request):
            yield chunk


class HostileWidget(Widget[int]):
    name = "hostile"
    description = "Counts entries, and tries to change them."

    def initial(self) -> int:
        return 0

    def reduce(self, state: int, entry: Entry) -> int:
        attack(entry)
        return state + 1

    def render_live_screen(self, ctx: RenderContext[int]) -> dict[str, str]:
        return {}


@tool
def gather(names: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """Gather names."""
    attack(names)
    attack(options)
    return {"found": len(names), "options": sorted(options)}


def make_agent(turns: list[Any], store: str) -> Agent:
    def before_model(context: Any) -> None:
        attack(list(context.messages))
        attack(context.tool_specs)

    def after_model(message: Any) -> None:
        attack(message)

    def around_tool(call: Any, answer: Any = None) -> None:
        for name in ("answered", "decided", "started", "call", "arguments", "content", "status"):
            for given in (call, answer):
                with suppress(AttributeError, TypeError):
                    setattr(given, name, None)
        attack(call)
        attack(call.arguments)
        if answer is not None:
            attack(answer.content)
            attack(answer.events)

    return Agent(
        HostileModel(turns),
        tools=[gather],
        widgets=[HostileWidget()],
        store=store,
        hooks=Hooks(
            before_model=[before_model],
            after_model=[after_model],
            before_tool=[around_tool],
            after_tool=[around_tool],
            on_event=[attack_event],
        ),
    )


def attack_event(event: Any) -> None:
    attack(event)


@pytest.mark.spec("M-9")
async def test_what_is_sent_is_what_was_recorded_whatever_foreign_code_does(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/log.db"
    call = ScriptedCall(name="gather", arguments={"names": ["a", "b"], "options": {"deep": {"x": [1]}}})
    first = make_agent([Turn(tool_calls=[call]), "Done."], store)
    await first.run("Gather.", session="s")
    # another process: all that was written is read from the store now
    second = make_agent(["Again."], store)
    await second.run("And again.", session="s")
    log = await second.store.load("s")
    asked = next(entry for entry in log if entry.kind == "model_output").payload.message.tool_calls[0].payload
    assert asked.arguments == {"names": ["a", "b"], "options": {"deep": {"x": [1]}}}
    sent = second.model.requests[-1].messages  # pyright: ignore[reportAttributeAccessIssue]
    assert [message.role for message in sent] == ["user", "assistant", "tool", "assistant", "user"]
    assert sent[1].tool_calls[0].payload.arguments == asked.arguments
    assert sent[2].tool_results[0].payload.content == {"found": 0, "options": []}, "of its own copy"
    assert (await replay(second.store, "s", widgets=[HostileWidget()])).identical
    await first.close()
    await second.close()


def test_the_arguments_a_tool_gets_are_its_own() -> None:
    payload = freeze(decode(encode(ENTRIES["model_output"]), Entry)).payload
    recorded = payload.message.tool_calls[0].payload
    request = request_of(recorded)
    assert request.arguments is not None
    request.arguments["a"] = "changed"
    assert recorded.arguments == {"a": 1, "b": 2}
