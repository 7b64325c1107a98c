"""The configuration that every model behind HTTP takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from turnlog.contract import (
    MASK,
    AgentError,
    JsonObject,
    Secret,
    guard,
    is_secret_header,
    scrub,
    secret_headers,
)

from .._config import ModelConfig

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    H = TypeVar("H", bound="HttpModelConfig", default=Any)
else:
    from typing import TypeVar

    H = TypeVar("H", bound="HttpModelConfig")


class HttpModelConfig(ModelConfig, frozen=True, kw_only=True):
    """``api_key`` is a :class:`Secret`: it shows in no log, error or representation.

    Times are in seconds: ``timeout_connect`` until the connection stands, ``timeout_first_byte`` until the
    first byte of the answer's body, ``timeout_silence`` between two pieces of it. ``extra_body`` is laid
    over the request's JSON, ``extra_headers`` over its headers.
    """

    base_url: str | None = None
    api_key: Secret | None = None
    timeout_connect: float = 10.0
    timeout_first_byte: float = 600.0
    timeout_silence: float = 300.0
    extra_headers: dict[str, str] | None = None
    extra_body: JsonObject | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("timeout_connect", "timeout_first_byte", "timeout_silence"):
            if not getattr(self, name) > 0:
                raise AgentError(
                    "ConfigInvalid", f"{name} is {getattr(self, name)}; it must be more than 0 seconds"
                )
        if self.base_url is not None:
            check_url(self.base_url, "base_url")
        for name, value in (self.extra_headers or {}).items():
            if not name.isascii() or not value.isascii() or "\n" in value or "\r" in value:
                raise AgentError("ConfigInvalid", f"extra_headers: {name!r} is not a plain ASCII header")
        for value in secret_headers(self.extra_headers).values():
            Secret(value)

    def __repr__(self) -> str:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.extra_headers is not None:
            fields["extra_headers"] = {
                name: MASK if is_secret_header(name) else value for name, value in self.extra_headers.items()
            }
        words = ", ".join(f"{name}={value!r}" for name, value in fields.items())
        return scrub(f"{type(self).__name__}({words})")  # a body of one's own may hold a key, under any name


def find_secrets(config: HttpModelConfig, variables: Sequence[str], provider: str) -> dict[str, str]:
    """What a model of this configuration must keep to itself, by a name that people know."""
    headers = secret_headers(config.extra_headers)
    found = {f"the header {name!r} for {provider}": value for name, value in headers.items()}
    if config.api_key:
        found[f"api_key of {provider}"] = config.api_key.reveal()
        return found
    for variable in variables:
        if value := os.environ.get(variable, "").strip():
            found[variable] = value
            break
    return found


def check_url(url: str, name: str) -> None:
    """Refuse what is not an http(s) address, and one that carries a password."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_fine = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise AgentError(
            "ConfigInvalid", f"{name} is {url!r}; expected something like 'https://api.example.com/v1'"
        )
    if parts.username or parts.password:
        raise AgentError("ConfigInvalid", f"{name} carries a user name or password; give it as api_key")


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    import ipaddress  # few addresses come this far

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find_url(config: HttpModelConfig, variables: Sequence[str], default: str) -> str:
    """Where to send: the configuration, else the first environment variable set, else ``default``."""
    if config.base_url:
        return config.base_url.rstrip("/")
    for variable in variables:
        if value := os.environ.get(variable, "").strip():
            check_url(value, f"the environment variable {variable}")
            return value.rstrip("/")
    return default.rstrip("/")


def find_key(config: HttpModelConfig, variables: Sequence[str], url: str, provider: str) -> str | None:
    """The key of a call: the configuration, else the first environment variable set.

    None on a loopback address without one, where servers rarely want a key; elsewhere ``ModelAuthError``
    that names the variables.
    """
    if config.api_key:
        return config.api_key.reveal()
    for variable in variables:
        if value := os.environ.get(variable, "").strip():
            guard(value)
            return value
    if is_loopback(url) or not variables:
        return None
    raise AgentError(
        "ModelAuthError",
        f"no API key for {provider} at {url}: set {' or '.join(variables)} in the environment, "
        "or pass api_key=…",
    )
