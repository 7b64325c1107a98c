"""The OpenAPI document, made from the table of endpoints and the values they take and give."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from turnlog import __version__

from ._app import Endpoint

_PROBLEM = {
    "type": "object",
    "required": ["title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
    },
}
_BYTES = {"/blobs/{name}", "/sessions/{session}/export", "/openapi.json"}


def document(endpoints: Sequence[Endpoint], root: str = "") -> dict[str, Any]:
    types = [each for e in endpoints for each in (e.query, e.body, e.returns) if each is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(f"/api{endpoint.path}", {})[endpoint.method.lower()] = _operation(
            endpoint, schema_of, components
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "turnlog", "version": __version__},
        "servers": [{"url": root or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    endpoint: Endpoint, schema_of: dict[int, dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _path_type(name)}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    if endpoint.query is not None:
        shape = components[endpoint.query.__name__]
        required = shape.get("required", [])
        parameters += [
            {"name": name, "in": "query", "required": name in required, "schema": schema}
            for name, schema in shape["properties"].items()
        ]
    problem = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    refused = sorted({400, 401, 404, 413, 422, *endpoint.errors})
    responses: dict[str, Any] = {str(status): {"description": "Refused.", **problem} for status in refused}
    responses[str(_status(endpoint))] = _answer(endpoint, schema_of)
    told: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if endpoint.body is not None:
        told["requestBody"] = {
            "required": bool(components[endpoint.body.__name__].get("required")),
            "content": {"application/json": {"schema": schema_of[id(endpoint.body)]}},
        }
    elif endpoint.path == "/blobs":
        told["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    return told


def _status(endpoint: Endpoint) -> int:
    gives = endpoint.returns is not None or endpoint.path in _BYTES or endpoint.path.endswith("/events")
    return endpoint.status if gives else 204


def _answer(endpoint: Endpoint, schema_of: dict[int, dict[str, Any]]) -> dict[str, Any]:
    if endpoint.returns is not None:
        schema = schema_of[id(endpoint.returns)]
        return {"description": "Done.", "content": {"application/json": {"schema": schema}}}
    if endpoint.path.endswith("/events"):
        return {"description": "Events.", "content": {"text/event-stream": {}}}
    return {"description": "The bytes." if endpoint.path in _BYTES else "Done."}


def _path_type(name: str) -> dict[str, Any]:
    return {"type": "integer"} if name in ("seq", "call") else {"type": "string", "minLength": 1}
