"""How much well-known models take and give, in tokens. The configuration overrides it."""

from __future__ import annotations

import re

WINDOWS: tuple[tuple[str, int, int | None], ...] = (
    (r"gpt-4\.1", 1_047_576, 32_768),
    (r"gpt-4o", 128_000, 16_384),
    (r"gpt-4-turbo", 128_000, 4_096),
    (r"gpt-4($|-0)", 8_192, None),
    (r"gpt-3\.5-turbo", 16_385, 4_096),
    (r"gpt-5.*chat", 128_000, 16_384),
    (r"gpt-5", 400_000, 128_000),
    (r"gpt-oss", 131_072, None),
    (r"o1-mini", 128_000, 65_536),
    (r"o[134](-|$)", 200_000, 100_000),
    (r"deepseek", 128_000, None),
    (r"grok-4.*fast", 2_000_000, None),
    (r"grok-(4|code)", 256_000, None),
    (r"grok-3", 131_072, None),
    (r"kimi-k2", 262_144, None),
    (r"glm-4\.[67]", 200_000, None),
    (r"glm-4\.5", 128_000, None),
    (r"codestral", 256_000, None),
    (r"(mi|ma|mini|devs)stral", 128_000, None),
    (r"gemini-2\.5", 1_048_576, 65_536),
    (r"llama-?3\.[123]", 131_072, None),
    (r"sonar", 127_072, None),
)
"""(pattern at the start of a model's name, without who serves it; window; longest answer)."""


def window_of(model: str) -> tuple[int | None, int | None]:
    """(window, longest answer) of ``model``; None where it is not known."""
    name = model.rpartition("/")[2].lower()
    for pattern, window, answer in WINDOWS:
        if re.match(pattern, name):
            return window, answer
    return None, None
