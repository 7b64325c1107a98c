"""What the adapters behind HTTP share: address, key, client, and one way to send."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import httpx2
import msgspec

from turnlog.contract import AgentError, RequestMetadata

from .._base import Model
from .._config import ModelConfig, ModelRequest
from .._faults import map_fault
from ._config import H, HttpModelConfig, find_key, find_secrets, find_url, is_loopback
from ._exchange import Exchange, Send, explain_transport, log_request


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
        self._pool = ClientPool()

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
        whole = {"content-type": "application/json", **trace_headers(request.metadata), **headers}
        if config.extra_headers:
            given = {name.lower() for name in config.extra_headers}
            whole = {name: value for name, value in whole.items() if name.lower() not in given}
            whole.update(config.extra_headers)
        provider = provider or self.provider_id
        return Exchange(self._sender(url, body, whole, config, provider), url, config, provider)

    def _sender(
        self, url: str, body: bytes, headers: Mapping[str, str], config: HttpModelConfig, provider: str
    ) -> Send:
        client: Any = self._client
        if client is None:
            client = self._pool.get(url)
        if isinstance(client, httpx2.AsyncClient):
            return send_with_client(client, url, body, headers, config)
        if callable(getattr(client, "with_options", None)):
            create = self._sdk_create(client.with_options(max_retries=0))
            if create is not None:
                return send_with_sdk(create, self.sdk_required, body, headers, url, provider)
        raise AgentError(
            "ConfigInvalid",
            f"client is a {type(client).__name__}; {type(self).__name__} takes an httpx2.AsyncClient"
            + (" or the official asynchronous client" if self.sdk_required else ""),
        )

    def _map_error(self, error: BaseException) -> AgentError:
        if isinstance(error, (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)):
            config = self._config
            return explain_transport(error, self._url(config), False, config)
        return super()._map_error(error)

    async def close(self) -> None:
        await self._pool.close()


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


# ── the two ways to send: our own client, or an official one that brings authentication ──

_LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=60.0)


@cache
def _trusted() -> ssl.SSLContext:
    """The machine's certificates, loaded once: it takes tens of milliseconds."""
    return httpx2.create_ssl_context()


@cache
def _trusting_nobody() -> ssl.SSLContext:
    """For plain http: no certificate is loaded, so none would be accepted."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class ClientPool:
    """``get`` gives the client of the running loop. A pool belongs to one model."""

    def __init__(self) -> None:
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[bool, httpx2.AsyncClient]] = (
            WeakKeyDictionary()
        )

    def get(self, url: str) -> httpx2.AsyncClient:
        local = is_loopback(url)
        of_loop = self._clients.setdefault(asyncio.get_running_loop(), {})
        client = of_loop.get(local)
        if client is None or client.is_closed:
            client = httpx2.AsyncClient(
                verify=_trusting_nobody() if local and url.startswith("http:") else _trusted(),
                trust_env=not local,  # a proxy of the environment never stands before one's own machine
                limits=_LIMITS,
                headers={"user-agent": "turnlog"},
            )
            of_loop[local] = client
        return client

    async def close(self) -> None:
        of_loop = self._clients.pop(asyncio.get_running_loop(), {})
        for client in of_loop.values():
            await client.aclose()


def send_with_client(
    client: httpx2.AsyncClient, url: str, body: bytes, headers: Mapping[str, str], config: HttpModelConfig
) -> Send:
    async def send() -> httpx2.Response:
        log_request(url, headers, body)
        request = client.build_request(
            "POST",
            url,
            content=body,
            headers={**headers, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=config.timeout_connect),
        )
        return await client.send(request, stream=True, follow_redirects=False)

    return send


def send_with_sdk(
    create: Any, required: tuple[str, ...], body: bytes, headers: Mapping[str, str], url: str, provider: str
) -> Send:
    """``create`` is an official client's ``….with_streaming_response.create``, its retries switched off.

    The body goes as it is; the client adds its address and authentication.
    """

    async def send() -> httpx2.Response:
        log_request(url, headers, body)
        fields = cast("dict[str, Any]", msgspec.json.decode(body))
        named = {name: fields.get(name) for name in required}
        extra = {**headers, "accept-encoding": "identity"}
        try:
            manager = create(**named, stream=True, extra_body=fields, extra_headers=extra)
            return (await manager.__aenter__()).http_response
        except Exception as error:
            refused: Any = getattr(error, "response", None)
            if isinstance(refused, httpx2.Response):
                raise map_fault(refused.status_code, refused.headers, refused.content, provider) from error
            cause = error.__cause__
            if isinstance(cause, httpx2.HTTPError):
                raise cause from error
            if isinstance(error, AgentError | httpx2.HTTPError | OSError):
                raise
            raise AgentError(
                "ModelUnknownError",
                f"the client could not send: {type(error).__name__}: {error}",
                cause=error,
            ) from error

    return send
