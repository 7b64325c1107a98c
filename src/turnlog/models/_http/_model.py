"""What the adapters behind HTTP share: address, key, client, and one way to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import httpx2

from turnlog.contract import AgentError

from .._base import Model
from .._config import ModelConfig
from ._clients import ClientPool
from ._config import HttpModelConfig, find_key, find_url
from ._exchange import Exchange, Send, explain_transport
from ._send import send_with_client, send_with_sdk


class HttpModel(Model):
    """An adapter names its defaults, builds a body, and reads an :class:`Exchange`::

        async def _stream(self, request):
            config = request.config
            url = self._url(config)
            async with self._send(f"{url}/messages", body, self._headers(config), config) as exchange:
                yield StreamStart(model_id=config.model_id, request_id=exchange.request_id)
                async for events in exchange.sse():
                    for name, data in events:
                        ...
                exchange.finished()

    ``client`` may be an ``httpx2.AsyncClient``, or an official client where the adapter says how
    (``_sdk_create``): that one brings its address and its authentication. Who hands it in closes it.
    """

    config_type: ClassVar[type[ModelConfig]] = HttpModelConfig
    default_base_url: ClassVar[str]
    url_variables: ClassVar[tuple[str, ...]] = ()
    key_variables: ClassVar[tuple[str, ...]] = ()
    sdk_required: ClassVar[tuple[str, ...]] = ()
    """Fields of the body that an official client's ``create`` insists on having by name."""

    def __init__(self, config: Any = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._pool = ClientPool()

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
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        config: HttpModelConfig,
        provider: str | None = None,
    ) -> Exchange:
        """A request to be entered with ``async with``. Content type and extra headers are added here.

        ``provider`` is who an error names; the adapter's ``provider_id`` when absent.
        """
        whole = {"content-type": "application/json", **headers}
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
