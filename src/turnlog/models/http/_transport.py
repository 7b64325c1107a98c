"""What an HTTP client must do for the adapters, and what it raises. Each client is a file beside this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from turnlog.contract import scrub

Fault: TypeAlias = Literal["connect", "tls", "connect_timeout", "timeout", "cut", "request"]
"""What failed: the connection, its TLS handshake, either of them in time, another time limit that the client
has, the connection later (it broke, or carried something else than HTTP), a request that cannot be sent."""


class TimeLimits(Protocol):
    """Seconds; ``HttpModelConfig`` explains them."""

    @property
    def timeout_connect(self) -> float: ...

    @property
    def timeout_first_byte(self) -> float: ...

    @property
    def timeout_silence(self) -> float: ...


class TransportError(Exception):
    """A client failed to send or to read; ``str`` of it is what is known of the reason."""

    def __init__(self, fault: Fault, said: str) -> None:
        super().__init__(said)
        self.fault: Fault = fault


class Answer(Protocol):
    """An answer whose status and headers have arrived. Names of ``headers`` are looked up in lower case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    async def read(self) -> bytes:
        """The next piece of the body as it arrived, still compressed; b"" at the end of the body.

        What arrived before the connection broke is given first. Raises ``TransportError``.
        """
        ...

    async def close(self) -> None:
        """Close the connection at once; one whose body was read to its end serves the next request."""
        ...


class Transport(Protocol):
    """A client with its connections, for one event loop. Cancelling a call closes its connection."""

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, timeout_connect: float) -> Answer:
        """POST ``body``, or GET where it is empty, and wait for the headers of the answer; a redirect is an
        answer like any other.

        The connection, TLS included, must stand within ``timeout_connect`` seconds; nothing else is limited
        here. Raises ``TransportError``.
        """
        ...

    async def close(self) -> None: ...


def words_of(error: BaseException, plain: str = "") -> str:
    """What went wrong, in the words of whatever lies deepest: a client often says nothing itself."""
    said, deeper = "", error
    while deeper is not None:
        said = str(deeper) or said
        deeper = deeper.__cause__ or deeper.__context__
    return scrub(said if len(said) <= 200 else f"{said[:200]}…") or plain or type(error).__name__
