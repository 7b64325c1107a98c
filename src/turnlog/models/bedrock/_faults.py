"""What botocore raises, as one of our errors. Told apart by name: botocore need not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from turnlog.contract import AgentError, encode, scrub

from .._faults import map_fault, map_stream_fault

_BY_NAME: Mapping[str, tuple[str, str]] = {
    "NoCredentialsError": ("ModelAuthError", "no AWS credentials; give the client some, or configure AWS"),
    "PartialCredentialsError": ("ModelAuthError", "the AWS credentials are not complete"),
    "CredentialRetrievalError": ("ModelAuthError", "the AWS credentials could not be fetched"),
    "TokenRetrievalError": ("ModelAuthError", "the AWS login has expired; log in again"),
    "UnauthorizedSSOTokenError": ("ModelAuthError", "the AWS login has expired; log in again"),
    "SSOTokenLoadError": ("ModelAuthError", "there is no AWS login; log in first"),
    "ProfileNotFound": ("ModelAuthError", "the AWS profile does not exist"),
    "NoRegionError": ("ConfigInvalid", "no AWS region; pass region=…, or a client that has one"),
    "ParamValidationError": ("ModelBadRequest", "botocore refused the request before sending it"),
    "EndpointConnectionError": (
        "ModelUnreachable",
        "no connection to Bedrock; check the region and network",
    ),
    "ConnectTimeoutError": ("ModelTimeout", "no connection to Bedrock in time"),
    "ProxyConnectionError": ("ModelUnreachable", "no connection to the proxy"),
    "SSLError": ("ModelUnreachable", "the TLS handshake with Bedrock failed"),
    "ReadTimeoutError": ("ModelTimeout", "Bedrock sent nothing for the client's read_timeout"),
    "ConnectionClosedError": ("ModelServerError", "Bedrock closed the connection"),
    "ResponseStreamingError": ("ModelServerError", "the connection broke in the middle of the answer"),
    "IncompleteReadError": ("ModelServerError", "the connection broke in the middle of the answer"),
    "ProtocolError": ("ModelServerError", "the connection broke in the middle of the answer"),
    "HTTPClientError": ("ModelServerError", "the connection to Bedrock failed"),
    "HTTPError": ("ModelServerError", "the connection to Bedrock failed"),
    "ConnectionError": ("ModelServerError", "the connection to Bedrock failed"),
    "OSError": ("ModelServerError", "the connection to Bedrock failed"),
    "ParserError": ("ModelProtocolError", "an event of the answer is damaged"),
    "ResponseParserError": ("ModelProtocolError", "the answer cannot be read"),
}
"""Name of an exception class, or of one it derives from → (code, what happened)."""


def explain(error: BaseException) -> AgentError | None:
    """The error that ``error`` stands for; None for one that is not a client's."""
    names = [kind.__name__ for kind in type(error).__mro__]
    if "ClientError" in names:
        return _refusal(error, in_stream="EventStreamError" in names)
    for name in names:
        if name in _BY_NAME:
            code, what = _BY_NAME[name]
            return AgentError(code, f"bedrock: {what}: {scrub(str(error))}", cause=error)
    return None


def _refusal(error: BaseException, *, in_stream: bool) -> AgentError:
    response = cast("dict[str, Any]", getattr(error, "response", None) or {})
    said: dict[str, Any] = response.get("Error") or {}
    found = {"code": said.get("Code"), "message": said.get("Message") or said.get("message")}
    found = {name: value for name, value in found.items() if value}
    meta: dict[str, Any] = response.get("ResponseMetadata") or {}
    status = meta.get("HTTPStatusCode")
    # In a running stream botocore makes up a status: the word decides.
    if in_stream or not isinstance(status, int):
        return map_stream_fault(found, "bedrock")
    return map_fault(status, meta.get("HTTPHeaders") or {}, encode(found), "bedrock")
