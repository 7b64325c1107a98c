"""Three grains of one text, each an ordered list of (key, text) sections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from ._base import Value

Grain: TypeAlias = Literal["live", "summary", "gist"]
Section: TypeAlias = tuple[str, str]

LIVE_SCREEN = "[LiveScreen]"
"""Key of the section that shows what widgets changed."""

HINTS = "[Hints]"
"""Key of the section that shows runtime hints that changed."""

APPROVAL = "[Approval]"
"""Key of the section that says that a human changed a call before it ran."""

OWN_SECTIONS = frozenset({LIVE_SCREEN, HINTS, APPROVAL})
"""Keys that the runtime adds by itself; all others were given with the input or the result."""


class LevelOfDetailSections(Value, frozen=True, kw_only=True):
    """``live`` as it was written; ``summary`` and ``gist`` are what it shrinks to at a fold."""

    live: list[Section]
    summary: list[Section]
    gist: list[Section]

    @classmethod
    def create_uniform(cls, sections: Sequence[Section]) -> LevelOfDetailSections:
        """The same sections at every grain."""
        return cls(live=list(sections), summary=list(sections), gist=list(sections))

    def get_sections(self, grain: Grain) -> list[Section]:
        match grain:
            case "live":
                return self.live
            case "summary":
                return self.summary
            case "gist":
                return self.gist

    def with_live_section(self, key: str, text: str) -> LevelOfDetailSections:
        """Self with ``key`` set in the live grain: replaced in place, or added at the end."""
        if try_get_section(self.live, key) is None:
            live = [*self.live, (key, text)]
        else:
            live = [(name, text if name == key else body) for name, body in self.live]
        return LevelOfDetailSections(live=live, summary=self.summary, gist=self.gist)


def try_get_section(sections: Sequence[Section], key: str) -> str | None:
    for name, text in sections:
        if name == key:
            return text
    return None


def without_live_screen(sections: Sequence[Section]) -> tuple[list[Section], str | None]:
    """The sections without the LiveScreen, and the LiveScreen."""
    rest = [section for section in sections if section[0] != LIVE_SCREEN]
    return rest, try_get_section(sections, LIVE_SCREEN)


def to_plain_text(sections: Sequence[Section]) -> str:
    """Sections in order, each key as a Markdown heading; an empty key has none."""
    return "\n\n".join(f"# {key}\n\n{text}" if key else text for key, text in sections)
