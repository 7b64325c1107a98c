"""What providers refuse in a request, as rules that need no provider.

::

    check_request("anthropic-messages", server.requests[0].body)

Each protocol's rules are what its documentation says and what its servers were seen to answer with a 400:
roles and their order, calls and their results, ids, names, blank texts, images, thinking, schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from turnlog.contract import JsonObject

from ._request_findings import Findings, as_object
from ._request_rules_blocks import anthropic_rules, converse_rules
from ._request_rules_gemini import gemini_rules
from ._request_rules_openai import chat_rules, responses_rules

_Rules: TypeAlias = Callable[[JsonObject, Findings, str | None], None]

_RULES: Mapping[str, _Rules] = {
    "openai-chat": chat_rules,
    "openai-responses": responses_rules,
    "anthropic-messages": anthropic_rules,
    "gemini": gemini_rules,
    "bedrock-converse": converse_rules,
}


def check_request(protocol: str, body: bytes | str | Mapping[str, Any], *, model: str | None = None) -> None:
    """Raise ``AssertionError`` that names every rule of ``protocol`` which ``body`` breaks.

    Protocols: ``openai-chat``, ``openai-responses``, ``anthropic-messages``, ``gemini``,
    ``bedrock-converse``. ``model`` is for protocols whose body does not name it; some rules hold for some
    models alone.
    """
    rules = _RULES.get(protocol)
    if rules is None:
        raise ValueError(f"no rules for the protocol {protocol!r}; there are some for {', '.join(_RULES)}")
    found = msgspec.json.decode(body) if isinstance(body, bytes | str) else dict(body)
    findings = Findings()
    if findings.need(isinstance(found, dict), "the body is no JSON object"):
        rules(as_object(found), findings, model)
    if findings.broken:
        raise AssertionError(f"{protocol} servers refuse this: " + "; ".join(findings.broken))
