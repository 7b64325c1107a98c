"""What is known of Bedrock's models by name: who made them, and what Converse lets them do."""

from __future__ import annotations

import re
from typing import NamedTuple

_REGIONS = frozenset({"us", "eu", "apac", "jp", "au", "ca", "sa", "me", "af", "global", "us-gov"})
_TEXT_ONLY = re.compile(
    r"titan-text|nova-micro|deepseek|gpt-oss|command|jamba|mixtral|mistral-(7b|large-2402|small-2402)"
    r"|llama3(-1)?-\d|llama3-2-[13]b|claude-(v2|instant)|claude-3-5-haiku"
)
_CACHES = re.compile(r"nova-|claude-3-5-haiku|claude-3-5-sonnet-20241022|claude-3-7|claude-[a-z]+-\d")


class Vendor(NamedTuple):
    name: str
    """``anthropic``, ``amazon``, …; empty when the name does not say (an inference profile's ARN)."""
    images: bool
    result_images: bool
    """Whether a tool's result may hold images, and say that it is an error."""
    cache: bool
    cache_tools: bool
    forced_tool: bool
    mixed_turns: bool
    """Whether a turn may hold a tool's result and text."""


def vendor_of(model_id: str) -> Vendor:
    words = model_id.rsplit("/", 1)[-1].split(".")
    if len(words) > 1 and words[0] in _REGIONS:
        words = words[1:]
    name = words[0] if len(words) > 1 else ""
    capable = name in ("anthropic", "amazon", "")
    caches = name in ("anthropic", "amazon") and _CACHES.search(model_id) is not None
    return Vendor(
        name=name,
        images=_TEXT_ONLY.search(model_id) is None,
        result_images=capable,
        cache=caches,
        cache_tools=caches and name == "anthropic",
        forced_tool=capable or name == "mistral",
        mixed_turns=capable,
    )
