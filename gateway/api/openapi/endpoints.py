"""`GET /openapi.json` and `GET /docs`: a packaged document, and its page.

Making the document needs types that nothing else in a process does. The page has no scripts and
loads nothing from elsewhere.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

Json = dict[str, Any]

FILE: Final = "openapi.json"
ADMIN_FILE: Final = "admin.json"
REFERENCE: Final = "#/components/schemas/"
SHOWN_VALUES_MAX: Final = 12
_STYLE: Final = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{font:13px ui-monospace,monospace}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
th,td{text-align:left;vertical-align:top;padding:.25rem .5rem;border-bottom:1px solid #8884}
th{font-weight:600}
summary{cursor:pointer;padding:.3rem 0}
details{border-left:3px solid #8884;padding-left:.75rem;margin:.4rem 0}
.get{color:#1a7f37}.post{color:#9a6700}.delete{color:#cf222e}
nav a{margin-right:1rem}
"""
_SECURITY: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class OpenApiEndpoints:
    def __init__(self, file: str = FILE) -> None:
        self._file = file

    async def document(self, request: Request) -> Response:
        return _cacheable_response(request, self._document, "application/json")

    async def page(self, request: Request) -> Response:
        return _cacheable_response(request, self._page, "text/html")

    @cached_property
    def _document(self) -> bytes:
        return packaged(self._file)

    @cached_property
    def _page(self) -> bytes:
        return page(orjson.loads(self._document)).encode()


def _cacheable_response(request: Request, body: bytes, media_type: str) -> Response:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_SECURITY, "etag": tag, "cache-control": "no-cache"}
    # Compressing proxies weaken the tag; for GET that matches, too (RFC 9110, 13.1.2).
    held = request.headers.get("if-none-match", "").split(",")
    if tag in (one.strip().removeprefix("W/") for one in held):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=media_type)


def packaged(file: str = FILE) -> bytes:
    return files(__package__).joinpath(file).read_bytes()


def page(document: Json) -> str:
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        f"<p>{escape(info['description'])}",
        "For programs: <a href=/openapi.json>openapi.json</a>.</p>",
        "<nav>",
        *(f"<a href='#{tag['name']}'>{tag['name']}</a>" for tag in document["tags"]),
        "<a href='#schemas'>Schemas</a></nav>",
        *(part for tag in document["tags"] for part in _section(document, tag)),
        "<h2 id=schemas>Schemas</h2>",
        *(_schema(name, made) for name, made in sorted(document["components"]["schemas"].items())),
        "</html>",
    ]
    return "\n".join(parts)


def _section(document: Json, tag: Json) -> Iterator[str]:
    yield f"<h2 id='{tag['name']}'>{tag['name']}</h2><p>{escape(tag['description'])}</p>"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag["name"] in operation["tags"]:
                yield _operation(method, path, operation)


def _operation(method: str, path: str, operation: Json) -> str:
    title = f"<b class={method}>{method.upper()}</b> <code>{escape(path)}</code>"
    parts = [
        f"<details id='{operation['operationId']}'>",
        f"<summary>{title} {escape(operation['summary'])}</summary>",
        f"<p>{_prose(operation['description'])}</p>" if "description" in operation else "",
    ]
    rows = [
        (f"{one['name']} <small>({one['in']})</small>", one["schema"], one["description"])
        for one in operation.get("parameters", ())
    ]
    if rows:
        parts.append(_table(rows))
    if "requestBody" in operation:
        parts += ["<p>Body: ", *_contents(operation["requestBody"]["content"]), "</p>"]
    for status, answer in operation["responses"].items():
        if "content" in answer:
            parts += [f"<p>{status}: ", *_contents(answer["content"]), "</p>"]
    return "".join([*parts, "</details>"])


def _contents(content: Json) -> Iterator[str]:
    for media, described in content.items():
        yield f"{_kind(described['schema'])} <small>{escape(media)}</small> "


def _schema(name: str, schema: Json) -> str:
    required = schema.get("required", ())
    rows = [
        (name + ("*" if name in required else ""), part, part.get("description", ""))
        for name, part in schema.get("properties", {}).items()
    ]
    shown = _table(rows) if rows else f"<p>{_kind(schema)}</p>"
    head = f"<summary><code>{escape(name)}</code></summary>"
    return f"<details id='schema-{escape(name)}'>{head}{shown}</details>"


def _table(rows: list[tuple[str, Json, str]]) -> str:
    lines = [
        f"<tr><td><code>{name}</code><td>{_kind(schema)}<td>{_prose(text)}"
        for name, schema, text in rows
    ]
    return "".join(["<table><tr><th>name<th>type<th>", *lines, "</table>"])


def _kind(schema: Json) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REFERENCE))
        return f"<a href='#schema-{name}'>{name}</a>"
    members = schema.get("anyOf") or schema.get("oneOf")
    if members:
        return " | ".join(dict.fromkeys(map(_kind, members)))
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if values:
        return _values(values)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    return escape(" | ".join(kind) if isinstance(kind, list) else kind)


def _values(values: list[Any]) -> str:
    shown = [f"<code>{escape(str(value))}</code>" for value in values[:SHOWN_VALUES_MAX]]
    return " | ".join(shown) + (" | …" if len(values) > SHOWN_VALUES_MAX else "")


def _prose(text: str) -> str:
    # Escape the text and turn backticks into `<code>`.
    parts = escape(text).split("`")
    return "".join(
        f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts)
    )
