"""What a local model can be told, and the chat templates it may use."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from turnlog.contract import AgentError

from .._config import ModelConfig
from ._weights import DEFAULT, KNOWN

OWN = "own"
"""The name for the template that the weights carry."""

_CHATML = r"""
{%- set told = messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' + (messages[0].content if told else 'You are a helpful assistant.') -}}
{%- if tools -%}
    {{- '\n\nThese are the functions you have, one a line:\n' -}}
    {%- for tool in tools -%}
        {{- ((tool.function if tool.function is defined else tool) | tojson) + '\n' -}}
    {%- endfor -%}
    {{- ADVICE -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- for message in (messages[1:] if told else messages) -%}
    {%- if message.role == 'tool' -%}
        {{- '<|im_start|>user\nThe function returned:\n' + message.content + AFTER + '<|im_end|>\n' -}}
    {%- elif message.tool_calls -%}
        {{- '<|im_start|>assistant\n' + (message.content + '\n' if message.content else '') -}}
        {%- for item in message.tool_calls -%}
            {%- set wanted = item.function if item.function is defined else item -%}
            {{- OPENING + '{"name": "' + wanted.name + '", "arguments": ' -}}
            {{- (wanted.arguments | tojson) + '}' + CLOSING + '\n' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- else -%}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""


def _chatml(opening: str, closing: str = "", advice: str = "", after: str = "") -> str:
    text = _CHATML
    for name, part in (("OPENING", opening), ("CLOSING", closing), ("ADVICE", advice), ("AFTER", after)):
        text = text.replace(name, f"'{part}'")
    return text


_ADVICE = (
    r"\nMost questions need no function: answer them in plain words. "
    "When a question cannot be answered without a function, answer only with "
)
_AFTER = r"\nWhen this is all you need, answer me in plain words; else call the next function."
_CALL = '{"name": <name>, "arguments": <arguments>}'

TEMPLATES: dict[str, str] = {
    "chatml": _chatml("I call ", after=r"\nAnswer my question with it."),
    "chatml-bare": _chatml("", "", rf"{_ADVICE}a JSON object:\n{_CALL}", _AFTER),
    "chatml-fence": _chatml(
        r"```json\n", r"\n```", rf"{_ADVICE}a json code block:\n```json\n{_CALL}\n```", _AFTER
    ),
}
"""For models that were taught with ChatML marks: ``chatml`` shows what functions there are and asks for
no form of call; the other two ask for one."""


class LocalConfig(ModelConfig, frozen=True, kw_only=True):
    """``model_id`` is a name of the weights table or the path of a .gguf file.

    ``n_ctx`` is the window in tokens (0: what the weights were trained for; memory grows with it).
    ``template`` is the chat template: a name (``chatml``, ``chatml-fence``, ``chatml-bare``), ``own`` for
    the one in the weights, the path of a ``.jinja`` file, or Jinja itself; without it, what the table says,
    else ``own``. ``protocol`` is how the server is spoken to. ``max_tokens`` has a default because a small
    model may not find its own end.
    """

    model_id: str = DEFAULT
    max_tokens: int | None = 1024
    n_ctx: int = 8192
    template: str | None = None
    protocol: Literal["chat", "responses", "messages"] = "chat"
    threads: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_ctx < 0 or 0 < self.n_ctx < 256:
            raise AgentError("ConfigInvalid", f"n_ctx is {self.n_ctx}; it must be 0 or at least 256")
        if self.threads < 1:
            raise AgentError("ConfigInvalid", f"threads is {self.threads}; it must be at least 1")


def find_template(config: LocalConfig) -> str | None:
    """The template's text; None for the one in the weights."""
    named = config.template
    if named is None:
        row = KNOWN.get(config.model_id)
        named = row.template if row and row.template else OWN
    if named == OWN:
        return None
    if named in TEMPLATES:
        return TEMPLATES[named]
    if "{{" in named or "{%" in named:
        return named
    try:
        return Path(named).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AgentError(
            "ConfigInvalid",
            f"template is {named!r}, which cannot be read ({error}); expected one of "
            f"{', '.join([OWN, *TEMPLATES])}, the path of a .jinja file, or Jinja itself",
        ) from error
