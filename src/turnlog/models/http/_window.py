"""The window that a server of the user's own serves a model with: asked of the server itself, once and within
a bound. A server that is not there, does not tell, or tells what cannot be, changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from ._exchange import log_request, log_response
from ._transport import Transport, TransportError

PATIENCE = 2.0
"""Seconds for all questions together. They come before a call, which must not wait long for them."""

_TRIES = 3
"""How often a server is asked that is not up yet, or loads a model when it is first called."""

_BODY_LIMIT = 1 << 20
_PLAUSIBLE = range(500, 20_000_000)

Fields: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[..., Awaitable[Any]]
"""``ask(path, body=None)``: the JSON that the server answers with; None for any other answer."""


class NotYet(Exception):
    """The model is not loaded, or the server not there: what it serves is decided later."""


class Server(NamedTuple):
    """Whom to ask: ``base`` is the address that calls go to, ``headers`` carry the key."""

    base: str
    model: str
    headers: Mapping[str, str]


class ToldWindows:
    """What one adapter was told, by address and model. An answer is kept; most servers are asked once."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], int] = {}
        self._tries: dict[tuple[str, str], int] = {}

    def get(self, base: str, model: str) -> int | None:
        return self._told.get((base, model))

    def may_ask(self, server: Server) -> bool:
        return self._tries.get((server.base, server.model), _TRIES) > 0

    async def ask(self, transport: Transport, server: Server) -> None:
        """Raises nothing but a cancellation from outside, after which the server may be asked again."""
        key = (server.base, server.model)
        before = self._tries.get(key, _TRIES)
        self._tries[key] = 0  # calls that come meanwhile go on without an answer
        try:
            async with asyncio.timeout(PATIENCE):
                found = await _ask_server(transport, server)
            if found is not None:
                self._told[key] = found
        except NotYet:
            self._tries[key] = before - 1
        except asyncio.CancelledError:
            self._tries[key] = before
            raise
        except Exception:  # nothing that a server does to a question may reach the call behind it
            return


async def _ask_server(transport: Transport, server: Server) -> int | None:
    root = server.base.removesuffix("/v1")
    headers = {
        **{name: value for name, value in server.headers.items() if name.lower() != "accept"},
        "accept": "application/json",
        "content-type": "application/json",
        "accept-encoding": "identity",
        # A connection that the server drops after its answer must not be the one of the call.
        "connection": "close",
    }

    async def ask(path: str, body: Fields | None = None) -> Any:
        content = b"" if body is None else msgspec.json.encode(body)
        return await _answer(transport, f"{root}{path}", headers, content)

    for question in (_list, _llama_cpp, _ollama, _lm_studio, _lite_llm):
        found = await question(ask, server.model)
        if found is not None:
            return found
    return None


async def _answer(transport: Transport, url: str, headers: Mapping[str, str], content: bytes) -> Any:
    log_request(url, headers, content)
    try:
        # A redirect is not followed: the key is for this host.
        answer = await transport.send(url, headers, content, PATIENCE)
    except TransportError as error:
        if error.fault == "connect":
            raise NotYet from error
        return None
    try:
        body = bytearray()
        while answer.status == 200 and (piece := await answer.read()):
            body += piece
            if len(body) > _BODY_LIMIT:
                return None
        log_response(url, answer.status, answer.headers, bytes(body))
        return msgspec.json.decode(body) if body else None
    except (msgspec.MsgspecError, ValueError, RecursionError, TransportError):
        return None
    finally:
        await answer.close()


# ── one question for each kind of server ──


async def _list(ask: Ask, model: str) -> int | None:
    """vLLM and SGLang tell it in their list of models, newer llama.cpp servers too. ``n_ctx_train`` beside it
    is what the weights were made for, not what is served."""
    cards = _rows(await ask("/v1/models"), "data") or _rows(await ask("/models"), "data")
    card = _named(cards, model, "id") or (cards[0] if len(cards) == 1 else {})
    if (parent := card.get("parent")) and card.get("max_model_len") is None:  # an adapter of another model
        card = _named(cards, parent, "id")
    return _figure(card.get("max_model_len")) or _figure(_fields(card.get("meta")).get("n_ctx"))


async def _llama_cpp(ask: Ask, model: str) -> int | None:
    """``n_ctx`` is that of one slot: what one request may fill."""
    return _figure(_fields(_fields(await ask("/props")).get("default_generation_settings")).get("n_ctx"))


async def _ollama(ask: Ask, model: str) -> int | None:
    """A model serves less than it was made for unless told otherwise, and how much is known once it is
    loaded. What does not fit is cut off without a word, so there is no refusal to learn from."""
    said = await ask("/api/ps")
    if not isinstance(_fields(said).get("models"), list):
        return None
    running = _rows(said, "models")
    card = _named(running, model, "name", "model") or _named(running, f"{model}:latest", "name", "model")
    if card:
        return _figure(card.get("context_length"))
    parameters = _fields(await ask("/api/show", {"model": model})).get("parameters")
    set_to = re.search(r"^num_ctx\s+(\d{1,9})\s*$", parameters, re.M) if isinstance(parameters, str) else None
    if set_to is None:
        raise NotYet
    return _figure(int(set_to[1]))


async def _lm_studio(ask: Ask, model: str) -> int | None:
    """``max_context_length`` beside it is what the weights were made for, not what is served."""
    card = _named(_rows(await ask("/api/v0/models"), "data"), model, "id")
    if card.get("state") == "not-loaded":
        raise NotYet
    return _figure(card.get("loaded_context_length"))


async def _lite_llm(ask: Ask, model: str) -> int | None:
    """One name may stand for several models: any of them may be the one that answers."""
    rows = _rows(await ask("/model/info"), "data")
    infos = [_fields(row.get("model_info")) for row in rows if row.get("model_name") == model]
    found = [_figure(info.get("max_input_tokens")) for info in infos]
    return min((figure for figure in found if figure is not None), default=None)


def _fields(value: Any) -> Fields:
    return cast("Fields", value) if isinstance(value, dict) else {}


def _rows(value: Any, name: str) -> list[Fields]:
    found: Any = _fields(value).get(name)
    return [_fields(row) for row in cast("list[Any]", found)] if isinstance(found, list) else []


def _named(rows: list[Fields], name: Any, *keys: str) -> Fields:
    found = [row for row in rows if any(row.get(key) == name for key in keys)]
    return found[0] if found else {}


def _figure(value: Any) -> int | None:
    """A number of tokens that a window can have."""
    return value if type(value) is int and value in _PLAUSIBLE else None
