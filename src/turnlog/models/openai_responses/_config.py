"""What a Responses model can be told."""

from __future__ import annotations

from turnlog.contract import JsonObject

from .._http import HttpModelConfig


class OpenAIResponsesConfig(HttpModelConfig, frozen=True, kw_only=True):
    """Fields of the protocol, and some that say how a server differs where its host does not tell.

    ``server_tools`` are tools that run at the provider, in the API's own form. ``store`` lets the provider
    keep the answers; off, thoughts come back encrypted and travel with the history (``encrypted_reasoning``
    says whether to ask for them). ``item_ids`` says whether what goes back carries the ids it came with,
    ``image_results`` whether a tool's result may hold images, ``images`` whether the model sees at all.
    ``api_version`` is Azure's; ``context_window`` and ``max_output_tokens`` say what a model takes that the
    table does not know. A ``response_format`` in the words of Chat Completions is understood too.
    """

    reasoning_effort: str | None = None
    reasoning_summary: str | None = None
    verbosity: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    server_tools: list[JsonObject] | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    store: bool = False
    truncation: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    organization: str | None = None
    project: str | None = None
    api_version: str | None = None
    encrypted_reasoning: bool | None = None
    item_ids: bool | None = None
    image_results: bool | None = None
    images: bool | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
