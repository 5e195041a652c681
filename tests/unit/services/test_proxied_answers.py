"""What a backend answers for embeddings or a ranking is handed on as it wrote it."""

from __future__ import annotations

import pytest

from gateway.errors import UpstreamFailed, UpstreamRejected
from gateway.services.proxy import read_answer


def test_what_was_asked_for_is_handed_on_as_it_was_written() -> None:
    body = b'{"model":"/opt/m","data":[{"embedding":[1.50, -0.0]}],"usage":{"prompt_tokens":3}}'
    expected = b'{"model":"m","data":[{"embedding":[1.50, -0.0]}],"usage":{"prompt_tokens":3}}'
    assert read_answer(body, "m", "gpu-1") == (expected, 3)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"null",
        b"{",
        b'{"data":[1',
        b'{"data":"\xff"}',
        b'{"a":01}',
        b'{"data":' + b"[" * 10**6,
    ],
)
def test_what_is_no_json_object_is_the_servers_fault(body: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="its answer is not"):
        read_answer(body, "m", "gpu-1")


@pytest.mark.parametrize("name", [b"usage", b"error", b"x"])
def test_little_may_stand_around_what_was_asked_for(name: bytes) -> None:
    many = b"[" + b"[]," * 400_000 + b"1]"
    with pytest.raises(UpstreamFailed, match="bytes around what was asked for"):
        read_answer(b'{"data":[],"%b":%b}' % (name, many), "m", "gpu-1")
    assert read_answer(b'{"data":%b}' % many, "m", "gpu-1")[1] == 0


def test_an_error_says_what_it_is() -> None:
    with pytest.raises(UpstreamRejected, match="too long"):
        read_answer(b'{"error":{"message":"too long","code":400},"data":[]}', "m", "gpu-1")
