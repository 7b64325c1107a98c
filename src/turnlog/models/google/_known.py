"""What is known of Gemini models by name. The first pattern that fits decides."""

from __future__ import annotations

import re

_WINDOWS: tuple[tuple[str, int, int], ...] = (
    (r"gemini-1\.5-pro", 2_097_152, 8_192),
    (r"gemini-1\.5", 1_048_576, 8_192),
    (r"gemini-2\.0", 1_048_576, 8_192),
    (r"gemini-.*-image", 65_536, 32_768),
    (r"gemini-([2-9]|flash|pro)", 1_048_576, 65_536),
    (r"gemma-3n", 32_768, 8_192),
    (r"gemma-", 131_072, 8_192),
)
_OLDER = re.compile(r"gemini-[12]\b|gemini-(pro|1)$|gemma|learnlm")


def window_of(model: str) -> tuple[int | None, int | None]:
    """(window, longest answer) of ``model``; None where it is not known."""
    name = model.rpartition("/")[2]
    for pattern, window, answer in _WINDOWS:
        if re.match(pattern, name):
            return window, answer
    return None, None


def is_third_generation(model: str) -> bool:
    """Whether ``model`` insists on signatures of calls and takes images inside results. Newer ones do."""
    return _OLDER.search(model.rpartition("/")[2]) is None
