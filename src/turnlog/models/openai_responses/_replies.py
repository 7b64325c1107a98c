"""Calls of tools that are not ours: an API that ran none of them wants a reply to each before it goes on."""

from __future__ import annotations

from collections.abc import Sequence

from turnlog.contract import JsonObject

from .._history import NO_RESULT
from .._loose import as_object, as_text

_WITHOUT_REPLY = frozenset({"computer_call", "local_shell_call"})
"""Calls whose reply cannot be made up, a picture of a screen say."""


def replies_to(item: JsonObject, kept: Sequence[JsonObject], custom_are_run: bool) -> list[JsonObject] | None:
    """What has to follow ``item``: nothing where it was answered; None where it cannot go back at all.

    ``kept`` is the ``providerData`` of all items that go back with it. ``custom_are_run`` says that the
    server itself runs what it reports as custom tools.
    """
    kind, call = as_text(item.get("type")), item.get("call_id")
    if kind in _WITHOUT_REPLY:
        return None
    others = [as_object(own.get("item")) for own in kept]
    if call is not None and any(
        other.get("call_id") == call and as_text(other.get("type")).endswith("_output") for other in others
    ):
        return []
    match kind:
        case "custom_tool_call" if not custom_are_run:
            return [{"type": "custom_tool_call_output", "call_id": call, "output": NO_RESULT}]
        case "apply_patch_call":
            return [
                {"type": "apply_patch_call_output", "call_id": call, "status": "failed", "output": NO_RESULT}
            ]
        case "shell_call":
            outcome = {"type": "exit", "exit_code": 1}
            output = [{"stdout": "", "stderr": NO_RESULT, "outcome": outcome}]
            return [{"type": "shell_call_output", "call_id": call, "output": output}]
        case "mcp_approval_request":
            return [
                {"type": "mcp_approval_response", "approval_request_id": item.get("id"), "approve": False}
            ]
        case _:
            return []
