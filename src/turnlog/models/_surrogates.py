"""Characters beyond the 16-bit plane that a provider cut in two: halves wait for each other."""

from __future__ import annotations


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Halves:
    """The first halves that still wait, one for each text that is being received."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, key: str) -> bool:
        return key in self._waiting

    def left(self) -> list[str]:
        return list(self._waiting)

    def mend(self, key: str, text: str) -> str:
        """``text`` with its pairs joined; a half at the end is kept for the next call, which must come.

        An empty text says there is no more. Halves that belong to nothing become U+FFFD.
        """
        last = not text
        text = self._waiting.pop(key, "") + text
        if text.isascii() or is_unicode(text):
            return text
        if not last and "\ud800" <= text[-1] <= "\udbff":
            self._waiting[key] = text[-1]
            text = text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
