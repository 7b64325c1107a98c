"""What the adapters behind HTTP share: configuration, address, key, transport, and one way to send."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from turnlog.contract import (
    MASK,
    AgentError,
    JsonObject,
    ModelInvocationDescriptor,
    RequestMetadata,
    Secret,
    guard,
    is_secret_header,
    scrub,
    secret_headers,
)

from .._base import Model
from .._config import ModelConfig, ModelInfo, ModelRequest
from ._exchange import Exchange, Send, explain_transport, log_request
from ._transport import Answer, Transport, TransportError
from ._window import Server, ToldWindows

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    H = TypeVar("H", bound="HttpModelConfig", default=Any)
else:
    from typing import TypeVar

    H = TypeVar("H", bound="HttpModelConfig")


TransportName: TypeAlias = Literal["aiohttp", "httpx2"]


class HttpModelConfig(ModelConfig, frozen=True, kw_only=True):
    """``api_key`` is a :class:`Secret`: it shows in no log, error or representation.

    Times are in seconds: ``timeout_connect`` until the connection stands, ``timeout_first_byte`` until the
    first byte of the answer's body, ``timeout_silence`` between two pieces of it. ``extra_body`` is laid
    over the request's JSON, ``extra_headers`` over its headers. ``transport`` is the HTTP client to use:
    ``aiohttp`` (the extra ``fast``) or ``httpx2``; when absent, the environment variable
    ``TURNLOG_TRANSPORT``, else aiohttp where it is installed.
    """

    base_url: str | None = None
    api_key: Secret | None = None
    timeout_connect: float = 10.0
    timeout_first_byte: float = 600.0
    timeout_silence: float = 300.0
    extra_headers: dict[str, str] | None = None
    extra_body: JsonObject | None = None
    transport: TransportName | None = None

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


class HttpModel(Model[H]):
    """An adapter names its defaults, builds a body, and reads an :class:`Exchange`::

        async def _stream(self, request):
            config = request.config
            headers = {"authorization": f"Bearer {self._key(config)}"}
            async with self._send(request, f"{self._url(config)}/messages", body, headers) as exchange:
                yield StreamStart(model_id=config.model_id, request_id=exchange.request_id)
                async for events in exchange.sse():
                    for name, data in events:
                        ...  # yield chunks; exchange.finished() before the last of them, then return
                raise exchange.unfinished()

    ``client`` may be an ``httpx2.AsyncClient``, or an official client where the adapter says how
    (``_sdk_create``): that one brings its address and its authentication. Who hands it in closes it.
    """

    config_type: ClassVar[type[ModelConfig]] = HttpModelConfig
    default_base_url: ClassVar[str]
    url_variables: ClassVar[tuple[str, ...]] = ()
    key_variables: ClassVar[tuple[str, ...]] = ()
    sdk_required: ClassVar[tuple[str, ...]] = ()
    """Fields of the body that an official client's ``create`` insists on having by name."""

    def __init__(self, config: H | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._pool = TransportPool()
        self._told: ToldWindows | None = None

    @property
    def secrets(self) -> Mapping[str, str]:
        return find_secrets(self._config, self.key_variables, self.provider_id)

    def _sdk_create(self, client: Any) -> Any:
        """``client.….with_streaming_response.create`` of an official client; None when it is not one."""
        return None

    def _url(self, config: HttpModelConfig) -> str:
        """The base address, without a slash at its end: the configuration's, else the given client's."""
        if config.base_url is None and self._client is not None:
            given = str(getattr(self._client, "base_url", "")).rstrip("/")
            if given:
                return given
        return find_url(config, self.url_variables, self.default_base_url)

    def _key(
        self, config: HttpModelConfig, variables: Sequence[str] | None = None, provider: str | None = None
    ) -> str | None:
        """The key; None where none is needed; ``ModelAuthError`` where one is and is not found.

        A client that was handed in may bring its own authentication, so with one no key is asked for.
        """
        if self._client is not None:
            return config.api_key.reveal() if config.api_key else None
        return find_key(
            config, variables or self.key_variables, self._url(config), provider or self.provider_id
        )

    def _send(
        self,
        request: ModelRequest[H],
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        provider: str | None = None,
    ) -> Exchange:
        """A request to be entered with ``async with``. Content type, trace and extra headers are added here.

        ``provider`` is who an error names; the adapter's ``provider_id`` when absent.
        """
        config = request.config
        ours = {"content-type": "application/json", **trace_headers(request.metadata), **headers}
        whole = with_extra(ours, config)
        whole["accept-encoding"] = "identity"
        provider = provider or self.provider_id
        return Exchange(self._sender(url, body, whole, config, provider), url, config, provider)

    def _sender(
        self, url: str, body: bytes, headers: Mapping[str, str], config: HttpModelConfig, provider: str
    ) -> Send:
        client: Any = self._client
        if (transport := self._transport(url, config)) is not None:
            return send_with(transport, url, body, headers, config)
        from . import _httpx2

        if callable(getattr(client, "with_options", None)):
            create = self._sdk_create(client.with_options(max_retries=0))
            if create is not None:

                def send_with_sdk() -> Awaitable[Answer]:
                    log_request(url, headers, body)
                    return _httpx2.send_with_sdk(create, self.sdk_required, body, headers, provider)

                return send_with_sdk
        raise AgentError(
            "ConfigInvalid",
            f"client is a {type(client).__name__}; {type(self).__name__} takes an httpx2.AsyncClient"
            + (" or the official asynchronous client" if self.sdk_required else ""),
        )

    def _transport(self, url: str, config: HttpModelConfig) -> Transport | None:
        """Of our own, or over the client that was handed in; None over an official client."""
        if self._client is None:
            return self._pool.get(url, config.transport)
        from . import _httpx2

        given = isinstance(self._client, _httpx2.httpx2.AsyncClient)
        return _httpx2.Httpx2Transport(self._client) if given else None

    def _map_error(self, error: BaseException) -> AgentError:
        if isinstance(error, (TransportError, OSError)):
            config = self._config
            return explain_transport(error, self._url(config), False, config)
        return super()._map_error(error)

    # ── the window, as a server of the user's own tells it ──

    def _own_server(self, config: H) -> Server | None:
        """Who is asked for the window of a model; None at a provider's public address. An adapter whose
        protocol people serve themselves says it here."""
        return None

    def ask_window(self, target: ModelInvocationDescriptor) -> Awaitable[None] | None:
        config = self._config
        if config.context_window is not None or target != self.descriptor:
            return None
        try:
            server = self._own_server(config)
        except AgentError:  # no key: the call itself says so
            return None
        if server is None:
            return None
        self._told = told = self._told or ToldWindows()
        if not told.may_ask(server):
            return None
        transport = self._transport(server.base, config)
        if transport is None:
            return None
        return told.ask(transport, server._replace(headers=with_extra(server.headers, config)))

    def told_window(self, target: ModelInvocationDescriptor) -> int | None:
        if self._told is None or target != self.descriptor:
            return None
        return self._told.get(self._url(self._config), self._config.model_id)

    def model_info(self) -> ModelInfo:
        info, told = super().model_info(), self.told_window(self.descriptor)
        if told is None or self._config.context_window is not None:
            return info
        return msgspec.structs.replace(info, context_window=told)

    def window_of(self, target: ModelInvocationDescriptor) -> int | None:
        # Without what a server told: that is a hint, which may move a fold but refuses nothing.
        return super().model_info().context_window if target == self.descriptor else None

    async def close(self) -> None:
        await self._pool.close()


def with_extra(headers: Mapping[str, str], config: HttpModelConfig) -> dict[str, str]:
    """``headers`` with the configuration's own in place of those of the same name."""
    given = {name.lower() for name in config.extra_headers or ()}
    whole = {name: value for name, value in headers.items() if name.lower() not in given}
    return {**whole, **(config.extra_headers or {})}


_TRACE = re.compile(r"[0-9a-f]{32}")
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_headers(metadata: RequestMetadata) -> dict[str, str]:
    """The call's trace as W3C's ``traceparent``, so that a gateway's spans join ours.

    A trace id of another form than W3C's is not sent: the server would drop the header.
    """
    trace = (metadata.trace_id or "").lower()
    if _TRACE_PARENT.fullmatch(trace):
        return {"traceparent": trace}
    if not _TRACE.fullmatch(trace) or not trace.strip("0"):
        return {}
    call = f"{metadata.run_id}:{metadata.model_call_index}:{metadata.attempt}"
    return {"traceparent": f"00-{trace}-{sha256(call.encode()).hexdigest()[:16]}-01"}


def send_with(
    transport: Transport, url: str, body: bytes, headers: Mapping[str, str], config: HttpModelConfig
) -> Send:
    def send() -> Awaitable[Answer]:
        log_request(url, headers, body)
        return transport.send(url, headers, body, config.timeout_connect)

    return send


class TransportPool:
    """``get`` gives the transport of the running loop. A pool belongs to one model."""

    def __init__(self) -> None:
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, Transport]] = (
            WeakKeyDictionary()
        )

    def get(self, url: str, wanted: TransportName | None) -> Transport:
        wanted = wanted or _named_by_environment()
        kind = (wanted, is_loopback(url), url.startswith("http:"))
        of_loop = self._of_loops.setdefault(asyncio.get_running_loop(), {})
        found = of_loop.get(kind)
        if found is None:
            for loop in [loop for loop in self._of_loops if loop.is_closed()]:
                del self._of_loops[loop]  # its transports know it, so that it would stay for ever
            found = of_loop[kind] = _make(*kind)
        return found

    async def close(self) -> None:
        of_loop = self._of_loops.pop(asyncio.get_running_loop(), {})
        for transport in of_loop.values():
            await transport.close()


def _named_by_environment() -> TransportName | None:
    match os.environ.get("TURNLOG_TRANSPORT", "").strip():
        case "":
            return None
        case "aiohttp" | "httpx2" as name:
            return name
        case name:
            raise AgentError(
                "ConfigInvalid", f"TURNLOG_TRANSPORT is {name!r}; it can be 'aiohttp' or 'httpx2'"
            )


def _make(wanted: TransportName | None, local: bool, plain: bool) -> Transport:
    if wanted != "httpx2":
        missing = "it is not installed: pip install 'turnlog[fast]'"
        if find_spec("aiohttp") is not None:
            from . import _aiohttp

            missing = _aiohttp.why_not(local=local)
            if missing is None:
                return _aiohttp.AiohttpTransport(local=local, plain=plain)
        if wanted == "aiohttp":
            raise AgentError("ConfigInvalid", f"the transport is to be aiohttp, but {missing}")
    from . import _httpx2

    return _httpx2.Httpx2Transport.make(local=local, plain=plain)


# ── address and key ──


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
