"""Where compatible servers differ, by the host they answer at and the model they serve: a table."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

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
        Quirks("openai", max_tokens_field="max_completion_tokens", strict_tools=True, cache_key=True),
    ),
    (
        "openai.azure.com",
        Quirks("azure", ("AZURE_OPENAI_API_KEY", "OPENAI_API_KEY"), azure=True, strict_tools=True),
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
    ("openrouter.ai", Quirks("openrouter", ("OPENROUTER_API_KEY",), reasoning_back="reasoning_details")),
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
_COMPLETION_TOKENS = re.compile(r"^(openai/)?(o\d|gpt-5|gpt-6|gpt-oss)")


def quirks_of(url: str, model: str) -> Quirks:
    host = urlsplit(url).hostname or ""
    found = next((quirks for name, quirks in HOSTS if host == name or host.endswith(f".{name}")), _DEFAULT)
    if found.azure and _COMPLETION_TOKENS.match(model):
        found = found._replace(max_tokens_field="max_completion_tokens")
    return found
