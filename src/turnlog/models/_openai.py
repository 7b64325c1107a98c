"""What OpenAI's two protocols share: how compatible servers differ, where and as whom to ask, how requests
are written, usage."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from turnlog.contract import (
    Feature,
    Image,
    JsonObject,
    ModelInvocationDescriptor,
    TokenUsage,
    ToolResultPayload,
    bare_name,
)

from ._turns import FoldCache, Wire
from .http import HttpModel, HttpModelConfig
from .http._window import Server
from .wire import image_note, is_strict, result_text, schema_name

ReasoningBack: TypeAlias = Literal["off", "reasoning_content", "reasoning", "reasoning_details"]


class Quirks(NamedTuple):
    """How one server wants its requests. The defaults are what nearly all of them take."""

    provider: str = "openai-compatible"
    key_variables: tuple[str, ...] = ("OPENAI_API_KEY",)
    max_tokens_field: str = "max_tokens"
    required_word: str = "required"
    """What ``tool_choice`` says when some tool must be called."""
    nine_character_ids: bool = False
    images: bool = True
    files: bool = False
    """Whether it reads PDFs."""
    usage_on_request: bool = True
    """Whether ``stream_options.include_usage`` is understood; some refuse it and send usage unasked."""
    seed_field: str = "seed"
    reasoning_back: ReasoningBack = "off"
    azure: bool = False
    strict_tools: bool = False
    cache_key: bool = False


_DEFAULT = Quirks()

HOSTS: tuple[tuple[str, Quirks], ...] = (
    (
        "api.openai.com",
        Quirks(
            "openai", max_tokens_field="max_completion_tokens", strict_tools=True, cache_key=True, files=True
        ),
    ),
    (
        "openai.azure.com",
        Quirks(
            "azure", ("AZURE_OPENAI_API_KEY", "OPENAI_API_KEY"), azure=True, strict_tools=True, files=True
        ),
    ),
    ("cognitiveservices.azure.com", Quirks("azure", ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"), azure=True)),
    ("services.ai.azure.com", Quirks("azure", ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"), azure=True)),
    (
        "api.mistral.ai",
        Quirks(
            "mistral",
            ("MISTRAL_API_KEY",),
            required_word="any",
            nine_character_ids=True,
            usage_on_request=False,
            seed_field="random_seed",
        ),
    ),
    ("api.groq.com", Quirks("groq", ("GROQ_API_KEY",), max_tokens_field="max_completion_tokens")),
    ("api.cerebras.ai", Quirks("cerebras", ("CEREBRAS_API_KEY",), max_tokens_field="max_completion_tokens")),
    (
        "api.deepseek.com",
        Quirks("deepseek", ("DEEPSEEK_API_KEY",), images=False, reasoning_back="reasoning_content"),
    ),
    (
        "openrouter.ai",
        Quirks("openrouter", ("OPENROUTER_API_KEY",), reasoning_back="reasoning_details", files=True),
    ),
    ("api.x.ai", Quirks("xai", ("XAI_API_KEY",))),
    ("api.moonshot.ai", Quirks("moonshot", ("MOONSHOT_API_KEY",), reasoning_back="reasoning_content")),
    ("api.moonshot.cn", Quirks("moonshot", ("MOONSHOT_API_KEY",), reasoning_back="reasoning_content")),
    ("api.z.ai", Quirks("zai", ("ZAI_API_KEY", "ZHIPUAI_API_KEY"), reasoning_back="reasoning_content")),
    ("open.bigmodel.cn", Quirks("zai", ("ZHIPUAI_API_KEY",), reasoning_back="reasoning_content")),
    ("aliyuncs.com", Quirks("alibaba", ("DASHSCOPE_API_KEY",))),
    ("api.together.xyz", Quirks("together", ("TOGETHER_API_KEY",))),
    ("api.together.ai", Quirks("together", ("TOGETHER_API_KEY",))),
    ("api.fireworks.ai", Quirks("fireworks", ("FIREWORKS_API_KEY",))),
    ("api.perplexity.ai", Quirks("perplexity", ("PERPLEXITY_API_KEY",))),
    ("generativelanguage.googleapis.com", Quirks("google", ("GEMINI_API_KEY", "GOOGLE_API_KEY"))),
    ("api.anthropic.com", Quirks("anthropic", ("ANTHROPIC_API_KEY",))),
    ("router.huggingface.co", Quirks("huggingface", ("HF_TOKEN", "HUGGINGFACE_API_KEY"))),
    ("api.sambanova.ai", Quirks("sambanova", ("SAMBANOVA_API_KEY",))),
    ("integrate.api.nvidia.com", Quirks("nvidia", ("NVIDIA_API_KEY",))),
    ("models.github.ai", Quirks("github", ("GITHUB_TOKEN",))),
    ("ollama.com", Quirks("ollama", ("OLLAMA_API_KEY",))),
)

# Models that refuse `max_tokens` wherever they are served, Azure's deployments included.
_READS_NO_FILES = re.compile(r"gpt-3|gpt-4(-\d|$|-turbo)|gpt-oss|o1-(mini|preview)|o3-mini")
_COMPLETION_TOKENS = re.compile(r"^(openai/)?(o\d|gpt-5|gpt-6|gpt-oss)")


@lru_cache(maxsize=256)
def quirks_of(url: str, model: str) -> Quirks:
    host = urlsplit(url).hostname or ""
    found = next((quirks for name, quirks in HOSTS if host == name or host.endswith(f".{name}")), _DEFAULT)
    if found.azure and _COMPLETION_TOKENS.match(model):
        found = found._replace(max_tokens_field="max_completion_tokens")
    return found


# ── who is asked ──

_LONGEST_CACHE_KEY = 64


class OpenAIConfig(HttpModelConfig, frozen=True, kw_only=True):
    """``api_version`` is Azure's; ``images`` and ``files`` say whether the model sees, and reads PDFs,
    where the host is not known."""

    organization: str | None = None
    project: str | None = None
    api_version: str | None = None
    images: bool | None = None
    files: bool | None = None


OC = TypeVar("OC", bound=OpenAIConfig)


class OpenAIModel(HttpModel[OC]):
    """The base of both protocols: the host says how a server differs and which variable holds its key."""

    provider_id: ClassVar[str] = "openai"
    default_base_url: ClassVar[str] = "https://api.openai.com/v1"
    url_variables: ClassVar[tuple[str, ...]] = ("OPENAI_BASE_URL",)
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)
    param_names: ClassVar[Mapping[str, str]] = {"thinking": "reasoning_effort"}

    def _quirks(self, config: HttpModelConfig) -> Quirks:
        return quirks_of(self._url(config), config.model_id)

    @property
    def descriptor(self) -> ModelInvocationDescriptor:
        config = self._config
        return ModelInvocationDescriptor(
            provider_id=self._quirks(config).provider,
            specification=self.specification,
            model=config.model_id,
        )

    def _features(self) -> frozenset[Feature]:
        config = self._config
        quirks = self._quirks(config)
        can: dict[Feature, bool] = {"images": sees(config, quirks), "files": reads_files(config, quirks)}
        return self.features - {name for name, has in can.items() if not has}

    def _auth(self, config: OpenAIConfig, quirks: Quirks) -> dict[str, str]:
        headers = {"accept": "text/event-stream"}
        key = self._key(config, quirks.key_variables, quirks.provider)
        if key:
            headers["api-key" if quirks.azure else "authorization"] = key if quirks.azure else f"Bearer {key}"
        if config.organization:
            headers["openai-organization"] = config.organization
        if config.project:
            headers["openai-project"] = config.project
        return headers

    def _own_server(self, config: OC) -> Server | None:
        url = self._url(config)
        headers = None if is_public(url) else self._auth(config, self._quirks(config))
        return None if headers is None else Server(url, config.model_id, headers)


def is_public(url: str) -> bool:
    """Whether it is the address of a provider that anybody may use."""
    return quirks_of(url, "") != _DEFAULT


def sees(config: OpenAIConfig, quirks: Quirks) -> bool:
    return quirks.images if config.images is None else config.images


def reads_files(config: OpenAIConfig, quirks: Quirks) -> bool:
    if config.files is not None:
        return config.files
    return quirks.files and _READS_NO_FILES.match(bare_name(config.model_id)) is None


def cache_key(session_id: str) -> str | None:
    """What names the prefix that a session's calls share; the API takes so many characters and no more."""
    if len(session_id) <= _LONGEST_CACHE_KEY:
        return session_id or None
    return sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()


# ── how both write a request ──

_json = msgspec.json.Encoder().encode


class OpenAIRequests:
    """Keeps what does not change between calls: the encoded history and the encoded tools."""

    def __init__(self) -> None:
        self._cache: FoldCache[Wire] = FoldCache()
        self._tools: tuple[object, bytes] = (None, b"")

    def _declared(self, key: object, declare: Callable[[], list[JsonObject]]) -> bytes:
        """The tools as JSON, nothing where there are none; made again when ``key`` is another."""
        if self._tools[0] != key:
            found = declare()
            self._tools = (key, _json(found) if found else b"")
        return self._tools[1]


def write_body(fields: JsonObject, extra: JsonObject, **arrays: Sequence[bytes]) -> bytes:
    """``fields`` that are not None, ``extra`` over them, and arrays that are JSON already, in pieces."""
    fields = {name: value for name, value in fields.items() if value is not None and name not in extra}
    given = {name: pieces for name, pieces in arrays.items() if any(pieces)}
    if not extra.keys().isdisjoint(arrays):  # someone's own words replace ours
        ours = {name: msgspec.Raw(b"".join(pieces)) for name, pieces in given.items()}
        return _json({**fields, **ours, **extra})
    body = [_json({**fields, **extra})[:-1]]
    for name, pieces in given.items():
        body += (f',"{name}":'.encode(), *pieces)
    return b"".join([*body, b"}"])


def held_schema(schema: JsonObject) -> JsonObject:
    """What holds an answer to ``schema``; strict only where OpenAI's rules for strict schemas are kept."""
    return {"name": schema_name(schema), "schema": schema, "strict": is_strict(schema)}


def told_result(result: ToolResultPayload, sees: bool, within: bool = False) -> tuple[str, list[Image]]:
    """(what is said of a result, its images). They are shown after it, or inside it where it may hold them
    (``within``); a model that does not see is told of them."""
    text, images = result_text(result)
    if images and not sees:
        text, images = "\n".join(filter(None, [text, *map(image_note, images)])), []
    elif images and not within:
        text = text or "[see the image below]"
    if result.is_error and text[:5].lower() != "error":
        text = f"Error: {text}"
    return text, images


# ── token counts, in their many spellings ──


def read_usage(found: dict[str, Any]) -> TokenUsage | None:
    """None for a usage object without counts."""
    given = _count(found, "prompt_tokens", "input_tokens")
    written = _count(found, "completion_tokens", "output_tokens")
    if given is None and written is None:
        return None
    given, written = given or 0, written or 0
    inputs = _table(found, "prompt_tokens_details", "input_tokens_details")
    outputs = _table(found, "completion_tokens_details", "output_tokens_details")
    reasoning = _count(outputs, "reasoning_tokens")
    if reasoning is None:
        reasoning = _count(found, "reasoning_tokens")
    total = _count(found, "total_tokens")
    if total is not None and reasoning and total == given + written + reasoning:
        written += reasoning  # xAI counts what was thought apart from what was said
    cached = _count(inputs, "cached_tokens")
    if cached is None:
        cached = _count(found, "prompt_cache_hit_tokens", "cached_tokens", "cache_read_input_tokens")
    stored = _count(inputs, "cache_write_tokens", "cache_creation_tokens")
    if stored is None:
        stored = _count(found, "cache_creation_input_tokens")
    return TokenUsage(
        input_tokens=given,
        output_tokens=written,
        total_tokens=given + written if total is None else total,
        cached_input_tokens=cached,
        cache_write_tokens=stored,
        reasoning_tokens=reasoning,
        cost=_cost(found),
    )


def _count(found: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = found.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return int(value)
    return None


def _table(found: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        value = found.get(name)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    return {}


def _cost(found: dict[str, Any]) -> float | None:
    value = found.get("cost")
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("total_cost")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
