"""Which headers of a request a server is sent."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.tools.mcp.servers import headers_digest, outgoing_headers
from tests.fakes.cases import each


def test_names_are_lower_case_and_tokens_are_bearers() -> None:
    assert outgoing_headers({"X-Team": "a b", "api_key": "k"}, "t.o-k", "tools[0]") == {
        "x-team": "a b",
        "api_key": "k",
        "authorization": "Bearer t.o-k",
    }
    assert outgoing_headers({"Authorization": "Basic abc"}, None, "tools[0]") == {
        "authorization": "Basic abc"
    }
    assert outgoing_headers({}, None, "tools[0]") == {}


@each(
    "name",
    [
        *("Host", "Content-Type", "content-length", "Transfer-Encoding", "Connection", "Cookie"),
        *("Forwarded", "X-Forwarded-For", "Proxy-Authorization", "Mcp-Session-Id", "X-Session-Id"),
        *("Sec-Fetch-Site", "Accept-Encoding", "Last-Event-Id", "Via", "TE", "Upgrade", "Expect"),
        *("", "a b", "a\r\nb", "é", "x" * 65, ":path"),
    ],
)
def test_headers_that_are_not_the_requests_to_set_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        outgoing_headers({name: "secret-value"}, None, "tools[3]")
    assert raised.value.param == "tools[3].headers"
    assert "secret-value" not in str(raised.value)


@each("value", ["", " ", "a\r\nb: c", "a\0", "é", "x" * 4097, "\x1b[31m", " a"])
def test_values_that_could_be_more_than_a_value_are_refused(value: str) -> None:
    with pytest.raises(InvalidRequest):
        outgoing_headers({"x-a": value}, None, "tools[0]")
    with pytest.raises(InvalidRequest):
        outgoing_headers({}, value, "tools[0]")


def test_a_token_is_bare_and_a_header_is_there_once() -> None:
    with pytest.raises(InvalidRequest, match="Bearer"):
        outgoing_headers({}, "Bearer abc", "tools[0]")
    with pytest.raises(InvalidRequest):
        outgoing_headers({"x-a": "1", "X-A": "2"}, None, "tools[0]")


def test_digest_tells_headers_apart() -> None:
    assert headers_digest({}) == ""
    assert headers_digest({"a": "1", "b": "2"}) == headers_digest({"b": "2", "a": "1"})
    different = [{"a": "1"}, {"a": "2"}, {"b": "1"}, {"a": "1b"}, {"ab": ""}, {"a": "1", "b": "2"}]
    assert len({headers_digest(one) for one in different}) == len(different)
