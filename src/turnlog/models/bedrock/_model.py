"""``bedrock:`` models: Amazon's Converse API through a botocore client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, ClassVar

from turnlog.contract import AgentError, Feature, JsonObject

from .._base import Chunk, Model
from .._cache import FoldCache
from .._config import ModelConfig, ModelRequest
from .._loose import as_object, as_text
from ..wire import ToolNames
from ._faults import explain
from ._pump import Pump
from ._request import BedrockConfig, build_arguments
from ._stream import ConverseReader
from ._turns import Turns, vendor_of


class BedrockModel(Model[BedrockConfig]):
    """Converse, streamed. ``client`` is a botocore or boto3 client of ``bedrock-runtime``.

    Without one, a client is made from botocore's own configuration at the first call; it does not retry.
    A client handed in keeps its own settings: switch its retries off (``retries={"total_max_attempts": 1}``),
    since whoever calls the model retries. Its calls block, so each runs in a thread of its own.
    """

    provider_id: ClassVar[str] = "bedrock"
    specification: ClassVar[str] = "bedrock-converse"
    config_type: ClassVar[type[ModelConfig]] = BedrockConfig
    features: ClassVar[frozenset[Feature]] = frozenset(
        {
            "text",
            "tools",
            "parallel_tools",
            "forced_tool",
            "thinking",
            "images",
            "stop_sequences",
            "cache",
            "output_schema",
        }
    )

    def __init__(self, config: BedrockConfig | str | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)
        self._turns: FoldCache[Turns] = FoldCache()
        self._made: Any = None
        if self._client is not None and not callable(getattr(self._client, "converse_stream", None)):
            raise AgentError(
                "ConfigInvalid",
                f"client is a {type(self._client).__name__} without converse_stream; "
                "make one with create_client('bedrock-runtime')",
            )

    async def _stream(self, request: ModelRequest[BedrockConfig]) -> AsyncIterator[Chunk]:
        config = request.config
        arguments = build_arguments(request, self._turns)
        pump = Pump(lambda: self._open(arguments, config))
        reader: ConverseReader | None = None
        pump.start()
        try:
            request_id = await _within(pump, config.timeout_first_byte, "timeout_first_byte")
            reader = ConverseReader(
                config.model_id,
                vendor_of(config.model_id).name,
                names=ToolNames(request.tool_specs),
                request_id=request_id,
            )
            while not reader.ended:
                try:
                    event = await _within(pump, config.timeout_silence, "timeout_silence")
                except StopAsyncIteration:
                    chunks = reader.end()
                else:
                    if request.raw is not None:
                        request.raw.append(event)
                    chunks = reader.feed(event)
                for chunk in chunks:
                    yield chunk
        finally:
            if reader is not None and reader.ended:
                await pump.drain()
            pump.close()

    def _open(self, arguments: JsonObject, config: BedrockConfig) -> tuple[str | None, Iterable[Any]]:
        """In the thread: send the request, wait for the answer's head."""
        client: Any = self._client or self._made
        if client is None:
            client = self._made = _make_client(config)
        response: JsonObject = client.converse_stream(**arguments)
        meta: JsonObject = response.get("ResponseMetadata") or {}
        kind = as_text(as_object(meta.get("HTTPHeaders")).get("content-type"))
        if kind.startswith("text/html"):
            response["stream"].close()
            raise AgentError(
                "ModelProtocolError",
                f"bedrock answered {meta.get('HTTPStatusCode', '')} with {kind} instead of an event stream; "
                "a proxy or login page is in between, or the client's endpoint is wrong",
                retryable=False,
            )
        return meta.get("RequestId"), response["stream"]

    def _map_error(self, error: BaseException) -> AgentError:
        return explain(error) or super()._map_error(error)

    def _features(self) -> frozenset[Feature]:
        vendor = vendor_of(self._config.model_id)
        can: dict[Feature, bool] = {
            "images": vendor.images,
            "cache": vendor.cache,
            "forced_tool": vendor.forced_tool,
            "output_schema": vendor.schemas,
        }
        return self.features - {name for name, has in can.items() if not has}

    async def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()


async def _within(pump: Pump, limit: float, name: str) -> Any:
    try:
        async with asyncio.timeout(limit):
            return await pump.next()
    except TimeoutError as error:
        raise AgentError(
            "ModelTimeout", f"bedrock sent nothing for {limit:g} seconds; raise {name} if it may", cause=error
        ) from error


def _make_client(config: BedrockConfig) -> Any:
    try:
        from botocore.config import Config  # pyright: ignore
        from botocore.session import get_session  # pyright: ignore
    except ModuleNotFoundError as error:
        raise AgentError(
            "PluginMissing",
            "Bedrock needs a client: pip install botocore, or pass client=… (botocore's or boto3's, "
            "of bedrock-runtime)",
            cause=error,
        ) from error
    settings: Any = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        read_timeout=max(config.timeout_first_byte, config.timeout_silence),
    )
    session: Any = get_session()
    return session.create_client("bedrock-runtime", region_name=config.region, config=settings)
