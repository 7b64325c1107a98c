"""What the adapters behind HTTP share: address, key, client, and one way to send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import httpx2

from turnlog.contract import AgentError

from .._base import Model
from .._config import ModelConfig
from ._clients import ClientPool
from ._config import HttpModelConfig, find_key, find_url
from ._exchange import Exchange, explain_transport


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

    ``client`` may be an ``httpx2.AsyncClient``; who hands it in closes it.
    """

    config_type: ClassVar[type[ModelConfig]] = HttpModelConfig
    default_base_url: ClassVar[str]
    url_variables: ClassVar[tuple[str, ...]] = ()
    key_variables: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Any = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._pool = ClientPool()

    def _url(self, config: HttpModelConfig) -> str:
        """The base address, without a slash at its end."""
        return find_url(config, self.url_variables, self.default_base_url)

    def _key(self, config: HttpModelConfig) -> str | None:
        """The key; None where none is needed; ``ModelAuthError`` where one is and is not found."""
        return find_key(config, self.key_variables, self._url(config), self.provider_id)

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
        client: Any = self._client
        if client is None:
            client = self._pool.get(url)
        elif not isinstance(client, httpx2.AsyncClient):
            raise AgentError(
                "ConfigInvalid",
                f"client is a {type(client).__name__}; {type(self).__name__} takes an httpx2.AsyncClient",
            )
        whole = {"content-type": "application/json", **headers}
        if config.extra_headers:
            given = {name.lower() for name in config.extra_headers}
            whole = {name: value for name, value in whole.items() if name.lower() not in given}
            whole.update(config.extra_headers)
        return Exchange(client, url, body, whole, config, provider or self.provider_id)

    def _map_error(self, error: BaseException) -> AgentError:
        if isinstance(error, (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError)):
            config = self._config
            return explain_transport(error, self._url(config), False, config)
        return super()._map_error(error)

    async def close(self) -> None:
        await self._pool.close()
