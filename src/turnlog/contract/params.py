"""Parameters of a model call."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ._base import JsonObject, Value


class ModelParams(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent with the calls of a run. A field that is not given is left to the model's configuration.

    ``extra`` holds the provider's own parameters, as its adapter documents them.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop_sequences: Sequence[str] | None = None
    seed: int | None = None
    extra: JsonObject | None = None

    def given(self) -> JsonObject:
        """The parameters that were given, by name."""
        found = {
            name: value
            for name in self.__struct_fields__
            if name != "extra" and (value := getattr(self, name)) is not None
        }
        return msgspec.to_builtins({**found, **(self.extra or {})})
