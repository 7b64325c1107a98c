"""Parameters of a model call."""

from __future__ import annotations

from ._base import JsonObject, Value


class ModelParams(Value, frozen=True, kw_only=True):
    """What is sent with the calls of a run. A field that is not given is left to the model's configuration.

    ``thinking`` is a budget in tokens or a word (``low``, ``high``, ``adaptive``, ``disabled``, …), as the
    model takes it. ``extra`` holds the provider's own parameters, as its adapter documents them.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    thinking: int | str | None = None
    extra: JsonObject | None = None

    def to_fields(self) -> JsonObject:
        """Keyword arguments of ``Model.stream``: those that are set, the provider's own among them."""
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name != "extra"}
        return {**{name: value for name, value in given.items() if value is not None}, **(self.extra or {})}
