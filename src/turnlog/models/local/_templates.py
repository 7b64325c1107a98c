"""Chat templates. llama.cpp reads off the template how a model writes a call, and sees no other form."""

from __future__ import annotations

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
