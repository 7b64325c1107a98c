"""The two ways to send a request: our own client, or an official one that brings authentication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import httpx2
import msgspec

from turnlog.contract import AgentError

from .._faults import map_fault
from ._config import HttpModelConfig
from ._debug import log_request
from ._exchange import Send


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
