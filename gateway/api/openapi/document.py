"""The OpenAPI 3.1 document, made from the operations and the schemas.

Making it takes a second, so it is made once, by `make openapi`, and packaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import __version__
from gateway.api.dialects import BASE_PATH
from gateway.api.openapi.endpoints import REFERENCE, Json
from gateway.api.openapi.operations import OPERATIONS, TAGS
from gateway.api.openapi.schemas import schemas

if TYPE_CHECKING:
    from gateway.api.openapi.operations import Operation, Parameter

SERVERS: Final[list[Json]] = [
    {"url": "/", "description": "As OpenAI spells it."},
    {"url": BASE_PATH, "description": "As Open Responses does; what needs no key is not there."},
]
_ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_MODEL: Final[Json] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "context_length": {"type": "integer", "description": "In tokens, output included."},
        "aliases": {"type": "array", "items": {"type": "string"}},
    },
}


def _list_of(name: str) -> Json:
    items = {"type": "array", "items": {"$ref": REFERENCE + name}}
    return {"type": "object", "properties": {"object": {"const": "list"}, "data": items}}


_OWN: Final[Json] = {
    "Error": _ERROR,
    "Object": {"type": "object"},
    "Model": _MODEL,
    "ModelList": _list_of("Model"),
    "Deleted": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "response"},
            "deleted": {"const": True},
        },
    },
    "IngestTraces": {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "array", "items": {"type": "object"}}},
    },
}


def document() -> Json:
    """Make the OpenAPI document, which takes about a second."""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Harmony Gateway",
            "version": __version__,
            "description": "The OpenAI Responses API in front of a fleet of gpt-oss servers. "
            "Only what is served is listed here.",
        },
        "servers": SERVERS,
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {**_OWN, **schemas()},
        },
    }


def encoded(made: Any) -> bytes:
    """The document as JSON with sorted keys: the same bytes for the same document."""
    return orjson.dumps(made, option=orjson.OPT_SORT_KEYS) + b"\n"


def _operation(operation: Operation) -> Json:
    described: Json = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": {str(status): _answer(operation) for status in operation.statuses},
    }
    if operation.description:
        described["description"] = operation.description
    if operation.parameters:
        described["parameters"] = [_parameter(one) for one in operation.parameters]
    if operation.body is not None:
        content = {"application/json": {"schema": {"$ref": REFERENCE + operation.body}}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.needs_key:
        refused = {"application/json": {"schema": {"$ref": REFERENCE + "Error"}}}
        described["responses"]["default"] = {"description": "An error.", "content": refused}
    else:
        described["security"] = []
        described["servers"] = [SERVERS[0]]
    return described


def _answer(operation: Operation) -> Json:
    content: Json = {}
    if operation.answer is not None:
        content[operation.media] = {"schema": {"$ref": REFERENCE + operation.answer}}
    elif operation.media != "application/json":
        content[operation.media] = {"schema": {"type": "string"}}
    if operation.events is not None:
        content["text/event-stream"] = {"schema": {"$ref": REFERENCE + operation.events}}
    return {"description": operation.summary + ".", **({"content": content} if content else {})}


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "required": parameter.place == "path",
        "schema": parameter.schema,
    }
