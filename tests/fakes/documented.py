"""Client that checks answers of gateways by the OpenAPI documents that they publish."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import httpx2
import jsonschema_rs
import orjson
from typing_extensions import override

from gateway.api.openapi.endpoints import ADMIN_FILE, FILE, packaged


@cache
def _operations(file: str) -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    paths = orjson.loads(packaged(file))["paths"]
    # A path without parameters goes before one that has them.
    ordered = sorted(paths.items(), key=lambda item: item[0].count("{"))
    return [
        (re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), methods)
        for path, methods in ordered
    ]


@cache
def _validator(file: str, schema: bytes) -> jsonschema_rs.Validator:
    components = orjson.loads(packaged(file))["components"]
    return jsonschema_rs.validator_for({**orjson.loads(schema), "components": components})


class DocumentedClient(httpx2.AsyncClient):
    """Client that insists on answers of gateways as documented, unless it reads a stream."""

    @override
    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **more: Any
    ) -> httpx2.Response:
        response = await super().send(request, stream=stream, **more)
        if not stream and "openai-version" in response.headers:
            _check(response)
        return response


def _check(response: httpx2.Response) -> None:
    method, path = response.request.method.lower(), response.request.url.path
    for file in (FILE, ADMIN_FILE):
        for pattern, methods in _operations(file):
            if method in methods and pattern.fullmatch(path):
                _check_by(file, methods[method]["responses"], response)
                return


def _check_by(file: str, described: dict[str, Any], response: httpx2.Response) -> None:
    answer = described.get(str(response.status_code)) or described.get("default")
    assert answer is not None, f"status {response.status_code} is not documented"
    if not response.content:
        return
    media = response.headers["content-type"].partition(";")[0]
    assert media in answer["content"], f"{media} is not documented"
    values: list[str | bytes] = []
    if media == "application/json":
        values = [response.content]
    elif media == "text/event-stream":
        values = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
    validator = _validator(file, orjson.dumps(answer["content"][media]["schema"]))
    for value in values:
        error = next(validator.iter_errors(orjson.loads(value)), None)
        assert error is None, f"{error.instance_path}: {error.message}"
