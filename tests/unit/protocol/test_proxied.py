from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.protocol.json_body import InputLimits
from gateway.protocol.proxied import ProxiedKind, ProxiedRequest, parse_proxied

LIMITS = InputLimits(
    json_depth_max=8,
    items_max=9,
    tools_max=9,
    schema_bytes_max=99,
    text_chars_max=99,
    json_containers_max=99,
)


def parsed(kind: ProxiedKind, **fields: Any) -> ProxiedRequest:
    return parse_proxied(orjson.dumps(fields), kind, limits=LIMITS)


@pytest.mark.parametrize("given", ["text", ["a", "b"], [1, 2], [[1], [2]]])
def test_embeddings_of_texts_and_of_ids_go_on_as_they_came(given: object) -> None:
    request = parsed("embeddings", model="m", input=given, dimensions=8, odd={"a": 1})
    assert (request.kind, request.model) == ("embeddings", "m")
    assert request.fields == {"model": "m", "input": given, "dimensions": 8, "odd": {"a": 1}}


def test_a_ranking_needs_a_query_and_documents() -> None:
    fields: dict[str, Any] = {"model": "m", "query": "q", "documents": ["a"], "top_n": 1}
    assert parsed("rerank", **fields).fields == fields
    for name in ("model", "query", "documents"):
        with pytest.raises(InvalidRequest) as caught:
            parsed("rerank", **{**fields, name: None})
        assert (caught.value.code, caught.value.param) == ("missing_required_parameter", name)


@pytest.mark.parametrize(
    ("fields", "param", "wanted"),
    [
        ({"model": 5, "input": "a"}, "model", "a string"),
        ({"model": "m", "input": {"a": 1}}, "input", "a string or an array"),
        ({"model": "m", "input": 5}, "input", "a string or an array"),
    ],
)
def test_what_has_the_wrong_type_is_told(fields: Any, param: str, wanted: str) -> None:
    with pytest.raises(InvalidRequest, match=wanted) as caught:
        parsed("embeddings", **fields)
    assert (caught.value.code, caught.value.param) == ("invalid_type", param)


DEEP = b'{"model":"m","input":' + b"[" * 20 + b"]" * 20 + b"}"


@pytest.mark.parametrize("body", [b"[]", b"{", DEEP])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_proxied(body, "embeddings", limits=LIMITS)
