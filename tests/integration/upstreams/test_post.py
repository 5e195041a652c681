"""`Post` says to a backend what the client would, without asking it each time."""

from __future__ import annotations

import httpx2
import pytest

from gateway.upstreams.http.client import Client, Post, read_body
from tests.fakes.raw_server import RawServer, Script, response


def serving(*scripts: Script) -> RawServer:
    return RawServer({"*": scripts})


async def test_a_post_says_what_the_client_would_say(client: Client) -> None:
    async with serving((response(b"ok"),)) as server:
        url, headers = httpx2.URL(f"{server.url}/x?y=z"), {"x-request-id": "1", "accept": "a/b"}
        post = Post(client, url, headers)
        await client.post(url, content=b"body", headers=headers)
        for _ in range(2):
            answer = await post([b"bo", b"dy"], timeouts={})
            assert (answer.status, await read_body(answer.body, 10)) == (200, b"ok")
            answer.body.close()
    plain, first, second = server.requests
    assert first == second
    assert (first.path, first.headers, first.body) == (plain.path, plain.headers, plain.body)


async def test_a_post_keeps_no_cookies_and_follows_no_redirects(client: Client) -> None:
    script = response(b"", status=307, headers="location: /y\r\nset-cookie: a=b\r\n")
    async with serving((script,)) as server:
        post = Post(client, httpx2.URL(server.url), {})
        for _ in range(2):
            answer = await post([], timeouts={})
            assert (answer.status, await read_body(answer.body, 10)) == (307, b"")
            answer.body.close()
    assert [request.headers.get("cookie") for request in server.requests] == [None, None]


async def test_a_post_with_a_header_that_is_none_is_not_sent(client: Client) -> None:
    async with serving((response(b"ok"),)) as server:
        post = Post(client, httpx2.URL(server.url), {"authorization": "Bearer a\r\nb: c"})
        with pytest.raises(httpx2.LocalProtocolError):
            await post([], timeouts={})
    assert server.requests == []
