"""More ways in and out for words that must be nowhere afterwards: hosted tools, MCP, WebSockets,
traces, servers without token ids, and requests that are refused.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from websockets.sync.client import connect

from tests.fakes.processes import Child, reserved_port, stopped, until_healthy
from tests.fakes.serving import serving
from tests.fakes.stream import frames_of
from tests.fakes.text_server import TextServer, text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

MODEL: Final = "gpt-oss-20b"
TEXT_MODEL: Final = "toy-text"
ENDS: Final = {"response.completed", "response.incomplete", "response.failed", "error"}
POLL_S: Final = 0.02
LOOPBACK: Final = ["127.0.0.0/8"]


@dataclass(frozen=True)
class Peers:
    """Who is outside: a site, an MCP server with `book` and `add`, and a server without token ids
    that says what it is asked.
    """

    site_url: str
    tools_url: str
    echo_url: str

    def sections(self) -> dict[str, Any]:
        """Settings with which all hosted tools are on, and both models known."""
        site = self.site_url.removeprefix("http://")
        web = {"enabled": True, "public": False, "allowed_hosts": [site], "visit_interval_s": 0}
        mcp = {"enabled": True, "url_networks": LOOPBACK, "url_plain_http": True}
        python = {"enabled": True, "engine": "monty"}
        models = [
            {"id": MODEL, "served_as": f"openai/{MODEL}"},
            {"id": TEXT_MODEL, "format": "passthrough", "context_length": 8192},
        ]
        return {"tools": {"web": web, "mcp": mcp, "python": python}, "models": models}


@contextmanager
def peers(folder: Path) -> Iterator[Peers]:
    """The last one in a thread, the others as processes; what is booked is a file in `folder`."""
    with reserved_port() as site_port, reserved_port() as tool_port:
        site = Child([str(site_port), "site"], {}, module="tests.fakes.site_server")
        tools = Child([str(tool_port), str(folder)], {}, module="tests.fakes.tool_server")
        with stopped(site), stopped(tools), echoing() as echo_url:
            until_healthy(site_port, site)
            until_healthy(tool_port, tools)
            there = f"http://127.0.0.1:{site_port}", f"http://127.0.0.1:{tool_port}/mcp"
            yield Peers(*there, echo_url)


@contextmanager
def echoing() -> Iterator[str]:
    """Its URL; in a thread with a loop of its own, because tests wait for processes in theirs."""
    echo = TextServer(lambda body: text(body["messages"][-1]["content"]), model=TEXT_MODEL)
    begun: Future[str] = Future()
    over = threading.Event()

    async def serve() -> None:
        async with serving(echo.app) as url:
            begun.set_result(url)
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    try:
        yield begun.result(timeout=30)
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True)
class Speaker:
    """A client that says `word`, and `id_word` where only an id may stand."""

    client: httpx2.Client
    word: str
    id_word: str
    is_kept: bool

    def post(self, path: str, *allowed: int, **request: Any) -> Any:
        answer = self.client.post(path, **request)
        assert answer.status_code in (allowed or (200,)), (path, answer.status_code, answer.text)
        return answer.json() if answer.status_code == 200 else None

    def create(self, said: str, *allowed: int, **fields: Any) -> Any:
        body = {"model": MODEL, "input": f"{said} {self.word}", **fields}
        return self.post("responses", *allowed, json=body)


def say_to_outsiders(speaker: Speaker, outside: Peers) -> None:
    """Calls of MCP tools, with approval and without, and pages that a model opens."""
    word = speaker.word
    server = {
        "type": "mcp",
        "server_label": "shop",
        "server_description": word,
        "server_url": outside.tools_url,
        "headers": {"x-note": word},
        "authorization": word,
    }
    book = f'[[sim steps=mcp shop.book {{"name": "{word}"}}; quote]]'
    free = {**server, "require_approval": "never"}
    made = speaker.create(book, tools=[free])
    assert "mcp_call" in {one["type"] for one in made["output"]}
    if speaker.is_kept:
        running = speaker.create(book, tools=[free], background=True)
        until_over(speaker, running["id"])
    careful = {**server, "require_approval": "always"}
    asked = speaker.create(book, tools=[careful])
    request = next(one for one in asked["output"] if one["type"] == "mcp_approval_request")
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": True,
        "reason": word,
    }
    said = {"role": "user", "content": f"{book} {word}"}
    again = [said, *asked["output"], answer]
    body = {"model": MODEL, "input": again, "tools": [careful]}
    speaker.post("responses", json=body)
    speaker.post("responses", 400, json=body)
    nowhere = {**free, "server_url": f"{outside.site_url}/{word}"}
    speaker.create("hello", 200, 424, tools=[nowhere])
    speaker.create(f'[[sim steps=mcp shop.add {{"{word}": 1}}; quote]]', tools=[free])
    page = f"{outside.site_url}/?{word}"
    steps = f"[[sim steps=search {word}; open {page}; find {word}; quote]]"
    speaker.create(f"{page} {steps}", tools=[{"type": "web_search"}])
    speaker.create(
        f"[[sim steps=open http://{word}.example/; quote]]", tools=[{"type": "web_search"}]
    )


def until_over(speaker: Speaker, response_id: str) -> None:
    while True:
        body = speaker.client.get(f"responses/{response_id}").json()
        if body["status"] not in {"queued", "in_progress"}:
            return
        time.sleep(POLL_S)


def say_over_a_websocket(speaker: Speaker) -> None:
    """Responses, stored and not, one that goes on from the other, and frames that are none."""
    word = speaker.word
    base = str(speaker.client.base_url).replace("http", "ws", 1)
    headers = dict(speaker.client.headers)
    frames: list[Any] = [
        create(f"[[sim think=none say={word}]] {word}", store=False, metadata={"a": word}),
        create(f"[[sim think=none say={word}]] {word}", instructions=word),
        create(f'[[sim think=none call=f arguments={{"{word}": 1}}]]', store=False),
        create(word, temperature=word),
        create("[[sim die_after=3]]"),
        {"type": word},
        {"type": "response.create", word: word},
    ]
    with connect(
        f"{base}responses",
        additional_headers={"authorization": headers["authorization"], "user-agent": word},
        proxy=None,
    ) as connection:
        for frame in [*map(json.dumps, frames), f"no json {word}"]:
            connection.send(frame)
            while json.loads(connection.recv(timeout=30))["type"] not in ENDS:
                pass


def create(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "response.create", "model": MODEL, "input": said, **fields}


def say_in_other_ways(speaker: Speaker) -> None:
    """Spans, chat endpoints, servers without token ids, embeddings, items of one's own."""
    word, kept = speaker.word, (200,) if speaker.is_kept else (400,)
    brief = f"[[sim think=none say={word}]] {word}"
    message = {"role": "user", "content": brief}
    span = {
        "object": "trace.span",
        "id": f"s_{speaker.id_word}",
        "trace_id": f"t_{speaker.id_word}",
        "span_data": {"type": "generation", "input": [message], "output": word},
        "error": {"message": word},
    }
    speaker.post("traces/ingest", 204, *kept, json={"data": [span]})
    speaker.post("traces/ingest", 400, json={"data": [{"object": word, word: word}]})
    chat = {"model": MODEL, "messages": [message], "user": word}
    speaker.post("chat/completions", json=chat)
    list(frames_of(speaker.client, "POST", "chat/completions", json={**chat, "stream": True}))
    speaker.post("chat/completions", 400, json={**chat, "response_format": {"type": word}})
    of_text = {"model": TEXT_MODEL, "messages": [{"role": "user", "content": word}]}
    assert word in json.dumps(speaker.post("chat/completions", json=of_text))
    for path in ("embeddings", "rerank", "completions"):
        speaker.post(path, 200, 400, 404, 502, json={"model": MODEL, "input": word, "query": word})
    said = {"model": TEXT_MODEL, "input": word, "instructions": word}
    assert word in json.dumps(speaker.post("responses", json=said))
    list(frames_of(speaker.client, "POST", "responses", json={**said, "stream": True}))
    call = {"type": "function_call", "call_id": word, "name": "f", "arguments": f'"{word}"'}
    told = {"type": "function_call_output", "call_id": word, "output": word}
    body = {"model": MODEL, "input": [{"role": "user", "content": brief}, call, told]}
    made = speaker.post("responses", json=body)
    speaker.post("responses/compact", 200, 400, json={"model": MODEL, "input": body["input"]})
    if speaker.is_kept:
        include = "include[]=reasoning.encrypted_content&include[]=message.output_text.logprobs"
        for path in (f"?{include}", "/input_items", "?stream=true"):
            assert speaker.client.get(f"responses/{made['id']}{path}").status_code in {200, 400}
        assert speaker.client.delete(f"responses/{made['id']}").status_code == 200


def say_what_is_refused(speaker: Speaker) -> None:
    """Words where they are wrong: bodies that are none, unknown fields, headers, queries."""
    word = speaker.word
    odd = {"content-type": "application/json"}
    for body in (f'{{"{word}', f'["{word}"]', f'{{"model": "{word}", "input": "{word}"}}'):
        speaker.post("responses", 400, 404, content=body.encode(), headers=odd)
    for fields in (
        {word: word},
        {"input": [{"type": word}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": word}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": word}]}]},
        {"tools": [{"type": "function", "name": word, "parameters": {"type": word}}]},
        {"tools": [{"type": "mcp", "server_label": word, "server_url": word}]},
        {"tools": [{"type": "code_interpreter", "container": word}]},
        {"text": {"format": {"type": "json_schema", "name": word, "schema": {"$ref": word}}}},
        {"previous_response_id": word},
        {"conversation": word},
        {"prompt": {"id": word}},
        {"metadata": {word * 10: word}},
    ):
        asked = {"model": MODEL, "input": "hello", **fields}
        speaker.post("responses", 200, 400, 404, 424, json=asked)
    files = {"file": (f"{word}.txt", word.encode())}
    speaker.post("files", 400, files=files, data={"purpose": word})
    speaker.post("files", 400, content=word.encode(), headers={"content-type": "multipart/" + word})
    speaker.post("containers", 400, 404, json={"name": word, "file_ids": [word]})
    speaker.post("conversations", 400, json={"items": [{"type": word}], "metadata": {"a": 1}})
    for headers in (
        {"authorization": f"Bearer {word}"},
        {"openai-project": word},
        {"openai-organization": word},
        {"user-agent": word, "traceparent": word, "cookie": word},
        {"x-request-id": word, "content-encoding": word},
    ):
        plain = {"model": MODEL, "input": "[[sim think=none]]"}
        speaker.post("responses", 200, 400, 401, 403, 415, json=plain, headers=headers)
    for query in (f"?after={word}", f"?include[]={word}", f"?{word}={word}", f"?order={word}"):
        assert speaker.client.get(f"files{query}").status_code < 500
        assert speaker.client.get(f"models{query}").status_code < 500
