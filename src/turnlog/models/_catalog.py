"""Names to models: ``provider:model``, split at the first colon. Nothing is imported before its use."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

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

_FAMILIES = (("gpt", "openai"), ("chatgpt", "openai"), ("claude", "anthropic"), ("gemini", "google"))
"""How the names of well-known models begin, and whose they are."""


def load_model(name: str, **config: Any) -> Model[Any]:
    """The model that ``name`` names: ``"anthropic:claude-…"``, ``"openai-chat:…"``, ``"local"``, ….

    Keyword arguments are fields of that model's configuration (``base_url``, ``api_key``, ``max_tokens``,
    …). No network is touched.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AgentError(
            "ConfigInvalid", f"a model's name is text as 'openai:MODEL', not a {type(name).__name__}"
        )
    prefix, _, model_id = _split(name)
    plugin = None if prefix in BUILT_IN else _find_plugin(prefix, model_id)
    if not model_id and prefix not in NO_NAME_NEEDED:
        raise AgentError("ConfigInvalid", f"{name!r} names no model; write {prefix}:{_what(prefix)}")
    factory = plugin or _find_built_in(prefix)
    model = factory(model_id, **config)
    if not isinstance(model, Model):
        raise AgentError(
            "ConfigInvalid", f"the model prefix {prefix!r} made a {type(model).__name__}, which is no Model"
        )
    return cast("Model[Any]", model)


def _what(prefix: str) -> str:
    """What is written behind a prefix."""
    return "FILE" if prefix == "scripted" else "MODEL"


def _split(name: str) -> tuple[str, str, str]:
    colon, slash = name.find(":"), name.find("/")
    if colon < 0 and slash > 0 and name[:slash] in BUILT_IN:
        return name.partition("/")
    return name.partition(":")


def _find_built_in(prefix: str) -> Any:
    module, _, attribute = BUILT_IN[prefix].partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise AgentError(
            "PluginMissing", f"the model prefix {prefix!r} needs {error.name}, which is not installed"
        ) from error


def _find_plugin(prefix: str, model_id: str) -> Any:
    from importlib.metadata import entry_points  # slow to load, and seldom needed

    plugins = entry_points(group=ENTRY_POINT_GROUP)
    for point in plugins:
        if point.name == prefix:
            try:
                return point.load()
            except Exception as error:  # whatever somebody else's package does when it is loaded
                raise AgentError(
                    "PluginMissing", f"the model prefix {prefix!r} is {point.value}, which fails: {error}"
                ) from error
    known = sorted({*BUILT_IN, *plugins.names})
    guess = _guess(prefix, model_id, known)
    raise AgentError(
        "ConfigInvalid",
        f"no model prefix {prefix!r}; {f'did you mean {guess}? Known' if guess else 'known'} are "
        f"{', '.join(known)}. "
        f"Other packages add one through the entry point group {ENTRY_POINT_GROUP!r}",
    )


def _guess(prefix: str, model_id: str, known: list[str]) -> str | None:
    """What somebody may have meant who left the prefix out, or misspelt it."""
    for start, provider in _FAMILIES:
        if prefix.lower().startswith(start):
            return f"{provider}:{prefix}" + (f":{model_id}" if model_id else "")
    from difflib import get_close_matches  # for mistakes alone

    for near in get_close_matches(prefix.lower(), known, n=1):
        return near if near in NO_NAME_NEEDED and not model_id else f"{near}:{model_id or _what(near)}"
    return None
