"""Decisions: bound to exactly what was asked, once, in time; and the views of a log."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from turnlog.approvals import (
    approval_digest,
    check_decision,
    definition_hash,
    denial_text,
    expired,
    is_approved,
    make_decision,
    make_request,
    pending_approvals,
)
from turnlog.contract import (
    AgentError,
    ApprovalDecided,
    ApprovalRequested,
    Entry,
    EntryPayload,
    Message,
    RunEnded,
    ToolCallRequest,
    ToolOutcome,
    ToolResults,
    ToolSpec,
    decode,
    encode,
    seal,
    tool_result_part,
)

NOON = "2026-01-31T12:00:00.000Z"
LATER = "2026-01-31T12:00:00.001Z"
BEFORE = "2026-01-31T11:59:59.999Z"
ARGUMENTS = {"path": "/srv/data", "recursive": True, "depth": 2}


def call(call_id: str = "c1", **arguments: Any) -> ToolCallRequest:
    return ToolCallRequest(
        tool_name="delete", tool_call_id=call_id, raw_arguments="", arguments=arguments or ARGUMENTS
    )


REQUEST = make_request("s1", call(), reason="dangerous", expires_at=NOON, sandbox="workspace")


def decision(action: str = "approve", request: ApprovalRequested = REQUEST, **fields: Any) -> ApprovalDecided:
    given: dict[str, Any] = {
        "tool_call_id": request.tool_call_id,
        "digest": request.digest,
        "action": action,
        "decided_by": "eve",
        **fields,
    }
    return ApprovalDecided(**given)


def refusal(
    decided: ApprovalDecided, request: ApprovalRequested = REQUEST, **options: Any
) -> tuple[str, str]:
    with pytest.raises(AgentError) as caught:
        check_decision(request, decided, **options)
    return caught.value.code, caught.value.message


# ── the digest ──


@pytest.mark.spec("A-3")
@pytest.mark.parametrize(
    "changed",
    [
        {"session_id": "s2"},
        {"call_id": "c2"},
        {"tool_name": "delet"},
        {"sandbox": None},
        {"sandbox": "none"},
        {"arguments": {**ARGUMENTS, "path": "/srv/data2"}},
        {"arguments": {**ARGUMENTS, "recursive": 1}},
        {"arguments": {**ARGUMENTS, "depth": 2.0}},
        {"arguments": {**ARGUMENTS, "depth": "2"}},
        {"arguments": {**ARGUMENTS, "more": None}},
        {"arguments": {"path": "/srv/data", "recursive": True}},
    ],
)
def test_any_change_is_another_digest(changed: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "session_id": "s1",
        "call_id": "c1",
        "tool_name": "delete",
        "arguments": ARGUMENTS,
        "sandbox": "workspace",
    }
    assert approval_digest(**fields) == REQUEST.digest
    assert approval_digest(**{**fields, **changed}) != REQUEST.digest


def test_the_digest_is_frozen_and_blind_to_the_order_of_keys() -> None:
    found = approval_digest("s", "c", "t", {"a": 1, "b": {"x": [1, "é"], "y": None}}, "workspace")
    assert found == approval_digest("s", "c", "t", {"b": {"y": None, "x": [1, "é"]}, "a": 1}, "workspace")
    assert found == "363f2ee61e0a287f0607a807bd24363d0421754a0ccc627882898264ee9817de"
    # Moving a boundary between two fields must not give the same bytes.
    assert approval_digest("s", "ct", "x", {}) != approval_digest("sc", "t", "x", {})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.spec("A-3")
@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4))
def test_the_digest_survives_the_log(arguments: dict[str, Any]) -> None:
    asked = ToolCallRequest(tool_name="t", tool_call_id="c", raw_arguments="", arguments=arguments)
    request = make_request("s", asked)
    back = decode(encode(request), ApprovalRequested)
    assert approval_digest("s", "c", "t", back.arguments) == request.digest
    check_decision(back, decision(request=back), session_id="s")


# ── checks ──


@pytest.mark.spec("A-3")
def test_a_decision_on_exactly_this_request_is_accepted() -> None:
    for action in ("approve", "deny", "abort"):
        check_decision(REQUEST, decision(action), now=BEFORE, session_id="s1")
    check_decision(REQUEST, decision("modify", arguments={"path": "/tmp/x"}), now=BEFORE, session_id="s1")
    check_decision(REQUEST, decision("expire", decided_by="turnlog"), now=NOON)


@pytest.mark.spec("A-3")
def test_what_is_shown_is_what_runs() -> None:
    other = make_request("s1", call(path="/"), sandbox="workspace")
    code, words = refusal(decision(digest=other.digest))
    assert (code, "what was shown is not what would run" in words) == ("ApprovalInvalid", True)
    code, words = refusal(decision(tool_call_id="c2"))
    assert (code, "'c2'" in words) == ("ApprovalInvalid", True)
    # A request changed after it was made, its digest left as it was.
    forged = msgspec.structs.replace(REQUEST, arguments={"path": "/"})
    assert refusal(decision(request=forged), forged, session_id="s1")[0] == "ApprovalInvalid"
    loosened = msgspec.structs.replace(REQUEST, sandbox="none")
    assert refusal(decision(request=loosened), loosened, session_id="s1")[0] == "ApprovalInvalid"
    assert refusal(decision(), session_id="s2")[0] == "ApprovalInvalid", "of another session"


@pytest.mark.parametrize(
    ("decided", "words"),
    [
        (decision("maybe"), "'maybe' does not exist"),
        (decision(decided_by="  "), "who decided"),
        (decision("modify"), "needs the arguments"),
        (decision("modify", arguments={"n": float("nan")}), "not finite"),
        (decision("approve", arguments={"path": "/"}), "use modify"),
        (decision("deny", arguments={}), "use modify"),
    ],
)
def test_malformed_decisions_are_refused(decided: ApprovalDecided, words: str) -> None:
    code, message = refusal(decided)
    assert code == "ApprovalInvalid"
    assert words in message
    assert "'c1' of 'delete'" in message


def test_time_limits() -> None:
    for now in (NOON, LATER, "2026-01-31T13:00:00+01:00", "2027-01-01T00:00:00Z"):
        code, words = refusal(decision(), now=now)
        assert (code, NOON in words) == ("ApprovalExpired", True)
    check_decision(REQUEST, decision(), now="2026-01-31T12:59:59+01:00")
    assert refusal(decision("expire"), now=BEFORE)[0] == "ApprovalInvalid"
    endless = make_request("s1", call())
    check_decision(endless, decision(request=endless), now="9999-01-01T00:00:00Z")
    assert "cannot expire" in refusal(decision("expire", endless), endless, now=NOON)[1]
    with pytest.raises(AgentError, match="ISO-8601"):
        make_request("s1", call(), expires_at="tomorrow")


def test_calls_without_arguments_are_not_asked_about() -> None:
    with pytest.raises(AgentError, match="cannot run"):
        make_request("s1", ToolCallRequest(tool_name="t", tool_call_id="c", raw_arguments="{"))


SPEC = ToolSpec(name="delete", description="Delete a folder.", parameter_schema={"type": "object"})


@pytest.mark.spec("A-3", "A-5")
def test_an_approval_is_bound_to_the_definition_of_the_tool() -> None:
    shown = definition_hash(SPEC)
    request = make_request("s1", call(), definition=shown)
    assert request.digest != make_request("s1", call()).digest
    approved = make_decision(request, "approve", by="eve", session_id="s1")
    assert is_approved(request, approved, session_id="s1", definition=shown)
    for changed in (
        {"description": "Delete a folder, and its parents."},
        {"parameter_schema": {"type": "object", "properties": {"all": {"default": True}}}},
        {"name": "remove"},
    ):
        now = definition_hash(msgspec.structs.replace(SPEC, **changed))
        assert not is_approved(request, approved, session_id="s1", definition=now), "it is asked again"
    assert definition_hash(msgspec.structs.replace(SPEC, strict=True)) == shown, "how it is sent is no matter"
    forged = msgspec.structs.replace(request, definition=None)
    assert refusal(approved, forged, session_id="s1")[0] == "ApprovalInvalid"
    without = make_request("s1", call())
    given = make_decision(without, "approve", by="eve")
    assert is_approved(without, given, session_id="s1", definition=shown), "older logs have none"


@pytest.mark.spec("A-3")
def test_what_was_not_let_through_is_not_approved() -> None:
    here = REQUEST.sandbox
    for action in ("deny", "abort", "expire"):
        assert not is_approved(REQUEST, decision(action), session_id="s1", sandbox=here)
    changed = decision("modify", arguments={"path": "/tmp/x"})
    assert is_approved(REQUEST, changed, session_id="s1", sandbox=here)
    for other in (None, "none", "landlock"):
        assert not is_approved(REQUEST, changed, session_id="s1", sandbox=other), (
            "it was asked for another level"
        )


@pytest.mark.spec("A-1")
def test_a_decision_is_made_after_every_check() -> None:
    def check(arguments: dict[str, Any]) -> list[str]:
        return [] if "path" in arguments else ["path: is required but missing"]

    made = make_decision(
        REQUEST, "modify", by="eve", arguments={"path": "/tmp"}, note="safer", now=BEFORE, check=check
    )
    assert made == decision("modify", arguments={"path": "/tmp"}, note="safer")
    for action, options, code, words in (
        ("aprove", {}, "ApprovalInvalid", "'aprove' is no decision; use one of approve, deny, modify, abort"),
        ("expire", {}, "ApprovalInvalid", "'expire' is no decision"),
        ("modify", {"arguments": {"x": 1}, "check": check}, "ApprovalInvalid", "path: is required"),
        ("modify", {}, "ApprovalInvalid", "needs the arguments"),
        ("approve", {"now": LATER}, "ApprovalExpired", "it had to be made before"),
        ("approve", {"session_id": "s2"}, "ApprovalInvalid", "digest"),
        ("approve", {"by": " "}, "ApprovalInvalid", "who decided"),
    ):
        given: dict[str, Any] = {"by": "eve", **options}
        with pytest.raises(AgentError) as caught:
            make_decision(REQUEST, action, **given)  # pyright: ignore
        assert (caught.value.code, words in caught.value.message) == (code, True), caught.value.message


def test_a_request_expires_at_its_time() -> None:
    assert expired(REQUEST, BEFORE) is None
    over = expired(REQUEST, NOON)
    assert over == decision("expire", decided_by="turnlog")
    check_decision(REQUEST, over, now=NOON, session_id="s1")
    assert expired(make_request("s1", call()), "9999-01-01T00:00:00Z") is None


def test_words_for_the_model() -> None:
    assert denial_text(REQUEST, decision("deny", note="wrong folder")) == (
        "eve did not allow this call of 'delete'. They said: “wrong folder”. It was not run. "
        "Do not call it again unchanged: take another way, or ask."
    )
    assert "ended the run" in denial_text(REQUEST, decision("abort"))
    assert NOON in denial_text(REQUEST, decision("expire"))
    with pytest.raises(AgentError):
        denial_text(REQUEST, decision())


# ── the log ──


class Log:
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, payload: EntryPayload, run_id: str = "r1") -> None:
        last = self.entries[-1] if self.entries else None
        sealed = seal(
            payload,
            id=f"e{len(self.entries) + 1}",
            previous_id=last.id if last else None,
            previous_hash=last.hash if last else "",
            session_id="s1",
            seq=len(self.entries) + 1,
            timestamp=f"2026-01-31T11:00:{len(self.entries):02d}.000Z",
            run_id=run_id,
        )
        self.entries.append(sealed.entry)

    def result(self, call_id: str) -> None:
        message = Message(run_id="r1", role="tool", parts=[tool_result_part(call_id, "x")], timestamp="t")
        outcome = ToolOutcome(tool_call_id=call_id, tool_name="delete", status="skipped")
        self.add(ToolResults(message=message, outcomes=[outcome]))


def test_pending_questions_of_a_log() -> None:
    log = Log()
    requests = {name: make_request("s1", call(name)) for name in ("c1", "c2", "c3", "c4")}
    for request in requests.values():
        log.add(request)
    assert [each.tool_call_id for each in pending_approvals(log.entries)] == ["c1", "c2", "c3", "c4"]
    first = pending_approvals(log.entries)[0]
    assert (first.entry_id, first.session_id, first.run_id) == ("e1", "s1", "r1")
    assert (first.requested, first.arguments) == (requests["c1"], ARGUMENTS)
    assert (first.requested_at, first.digest) == ("2026-01-31T11:00:00.000Z", requests["c1"].digest)
    assert (first.tool_name, first.reason, first.expires_at) == ("delete", None, None)
    log.add(decision(request=requests["c2"]))
    log.result("c3")
    assert [each.tool_call_id for each in pending_approvals(log.entries)] == ["c1", "c4"]
    again = make_request("s1", call("c1"), sandbox="stricter")
    log.add(again)
    assert [each.requested for each in pending_approvals(log.entries)] == [requests["c4"], again]
    log.add(RunEnded(status="aborted"), run_id="r0")
    assert len(pending_approvals(log.entries)) == 2, "another run's end is no concern of theirs"
    log.add(RunEnded(status="aborted"))
    assert pending_approvals(log.entries) == []
