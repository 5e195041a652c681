"""Requests that are passed through: embeddings and reranking.

Priority, id, cache and adapter path are the gateway's to choose. Media must be `data:` URLs, so
that the server fetches nothing that the client cannot reach. Sources:
https://platform.openai.com/docs/api-reference/embeddings; for `rerank` the request that vLLM and
SGLang share with Cohere and Jina; for the rest vLLM 0.32's `entrypoints/pooling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from gateway.errors import InvalidRequest, shown
from gateway.protocol.base import presentable
from gateway.protocol.json_body import parse_object
from gateway.protocol.request_errors import invalid, missing, unknown

if TYPE_CHECKING:
    from gateway.protocol.json_body import InputLimits

ProxiedKind = Literal["embeddings", "rerank"]

PATHS: Final[dict[ProxiedKind, str]] = {"embeddings": "/v1/embeddings", "rerank": "/v1/rerank"}
_NEEDED: Final[dict[ProxiedKind, dict[str, tuple[type, ...]]]] = {
    "embeddings": {"model": (str,), "input": (str, list)},
    "rerank": {"model": (str,), "query": (str, dict), "documents": (list, dict)},
}
_SHARED: Final = frozenset(
    {"model", "user", "add_special_tokens", "padding", "truncate_prompt_tokens", "truncation_side"}
)
_SERVED: Final[dict[ProxiedKind, frozenset[str]]] = {
    "embeddings": _SHARED
    | {"input", "dimensions", "encoding_format", "embed_dtype", "endianness", "use_activation"},
    "rerank": _SHARED
    | {"query", "documents", "top_n", "return_documents", "max_tokens_per_query"}
    | {"max_tokens_per_doc", "instruct", "instruction", "use_activation"},
}
_CONTENT_FIELDS: Final[dict[ProxiedKind, tuple[str, ...]]] = {
    "embeddings": ("input",),
    "rerank": ("query", "documents"),
}
"""Text, or parts as in a chat."""
_WORDS: Final = frozenset({"", "text", "content", "type", "detail", "data", "format"})
"""Members of such a part whose strings are no addresses; empty: a string in no member."""
_NAMES: Final[dict[type, str]] = {str: "a string", list: "an array", dict: "an object"}


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """Request to pass on: its `fields`, and in `ignored` other names that are fit for a header."""

    kind: ProxiedKind
    model: str
    fields: dict[str, Any]
    ignored: tuple[str, ...]


def parse_proxied(
    body: bytes, kind: ProxiedKind, *, limits: InputLimits, strict: bool = False
) -> ProxiedRequest:
    """Parse a request. The other server checks all values except addresses of media."""
    fields = parse_object(body, limits)
    for name, kinds in _NEEDED[kind].items():
        if fields.get(name) is None:
            raise missing(name)
        if type(fields[name]) not in kinds:
            wanted = " or ".join(_NAMES[one] for one in kinds)
            raise InvalidRequest(
                f"Invalid type for '{name}': expected {wanted}.", code="invalid_type", param=name
            )
    others = tuple(name for name in fields if name not in _SERVED[kind])
    if strict and others:
        raise unknown(min(others))
    for name in _CONTENT_FIELDS[kind]:
        _check_media(fields[name], name)
    served = {name: value for name, value in fields.items() if name in _SERVED[kind]}
    return ProxiedRequest(kind, fields["model"], served, presentable(others))


def _check_media(value: object, param: str, place: str = "") -> None:
    if isinstance(value, str):
        if place not in _WORDS and not value.startswith("data:"):
            raise invalid(
                param,
                f"'{shown(place)}' has to be a data: URL, such as data:image/png;base64,…: nothing "
                "is fetched here. Text stands in 'text'.",
            )
    elif isinstance(value, dict):
        for name, one in value.items():
            _check_media(one, param, name)
    elif isinstance(value, list):
        for one in value:
            _check_media(one, param, place)
