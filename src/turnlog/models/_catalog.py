"""Names to models: ``provider:model``, split at the first colon. Nothing is imported before its use."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from turnlog.contract import AgentError

from ._base import Model

ENTRY_POINT_GROUP = "turnlog.models"

BUILT_IN: dict[str, str] = {
    "scripted": "turnlog.models.scripted:load_script",
    "local": "turnlog.models.local:LocalModel",
    "openai": "turnlog.models.openai_responses:OpenAIResponsesModel",
    "openai-chat": "turnlog.models.openai_chat:OpenAIChatModel",
    "anthropic": "turnlog.models.anthropic:AnthropicModel",
    "google": "turnlog.models.google:GoogleModel",
    "bedrock": "turnlog.models.bedrock:BedrockModel",
}
"""Prefix → ``module:attribute``. The attribute is called with the model's name and the configuration."""

NO_NAME_NEEDED = frozenset({"local"})


def load_model(name: str, **config: Any) -> Model:
    """The model that ``name`` says: ``"anthropic:claude-…"``, ``"openai-chat:…"``, ``"local"``, ….

    Keyword arguments are fields of that model's configuration (``base_url``, ``api_key``, ``max_tokens``,
    …). No network is touched.
    """
    prefix, _, model_id = _split(name)
    factory = _find(prefix)
    if not model_id and prefix not in NO_NAME_NEEDED:
        raise AgentError("ConfigInvalid", f"{name!r} names no model; write {prefix}:MODEL")
    return factory(model_id, **config)


def _split(name: str) -> tuple[str, str, str]:
    colon, slash = name.find(":"), name.find("/")
    if colon < 0 and slash > 0 and name[:slash] in BUILT_IN:
        return name.partition("/")
    return name.partition(":")


def _find(prefix: str) -> Any:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == prefix:
            return point.load()
    target = BUILT_IN.get(prefix)
    if target is None:
        known = sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})
        raise AgentError(
            "ConfigInvalid",
            f"no model prefix {prefix!r}; known are {', '.join(known)}. "
            f"Other packages add one through the entry point group {ENTRY_POINT_GROUP!r}",
        )
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise AgentError(
            "PluginMissing", f"the model prefix {prefix!r} needs {error.name}, which is not installed"
        ) from error
