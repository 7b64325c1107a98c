"""What a local model can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from turnlog.contract import AgentError

from .._config import ModelConfig
from ._templates import OWN, TEMPLATES
from ._weights import DEFAULT, KNOWN


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
