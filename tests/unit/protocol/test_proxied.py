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
    request = parsed("embeddings", model="m", input=given, dimensions="8")
    assert (request.kind, request.model, request.ignored) == ("embeddings", "m", ())
    assert request.fields == {"model": "m", "input": given, "dimensions": "8"}


def test_how_the_server_runs_a_request_is_not_the_clients_to_say() -> None:
    fields = {"model": "m", "input": "a"}
    ours = {
        "priority": -9,
        "cache_salt": "x",
        "rid": "1",
        "lora_path": "/x",
        "messages": [],
        "ü": 1,
    }
    request = parsed("embeddings", **fields, **ours)
    assert request.fields == fields
    assert request.ignored == ("priority", "cache_salt", "rid", "lora_path", "messages")
    with pytest.raises(InvalidRequest) as caught:
        parse_proxied(orjson.dumps(fields | ours), "embeddings", limits=LIMITS, strict=True)
    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "cache_salt")


PNG = "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    "document",
    [
        "http://a is a text",
        {"text": "http://a is a text"},
        {"content": [{"type": "text", "text": "x"}]},
        {"content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]},
        {"content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]},
    ],
)
def test_text_and_media_that_are_there_go_on(document: object) -> None:
    fields: dict[str, Any] = {"model": "m", "query": document, "documents": [document]}
    assert parsed("rerank", **fields).fields == fields


@pytest.mark.parametrize(
    "document",
    [
        {"content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}]},
        {"content": [{"type": "image_url", "image_url": "file:///etc/passwd"}]},
        {"text": "x", "image": "/etc/passwd"},
        {"video": [PNG, "https://example.com/x.mp4"]},
    ],
)
def test_nothing_is_fetched_for_a_client(document: object) -> None:
    places: list[tuple[ProxiedKind, str, dict[str, Any]]] = [
        ("rerank", "query", {"query": document, "documents": ["a"]}),
        ("rerank", "documents", {"query": "q", "documents": [document]}),
        ("embeddings", "input", {"input": [document]}),
    ]
    for kind, param, fields in places:
        with pytest.raises(InvalidRequest, match="has to be a data: URL") as caught:
            parsed(kind, model="m", **fields)
        assert (caught.value.code, caught.value.param) == ("invalid_value", param)


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
