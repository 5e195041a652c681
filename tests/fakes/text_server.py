"""A server without token ids, that speaks the chat endpoint as one of four servers does.

What it says is a list of `Said`; how that is put into events, and which further paths there are,
is the dialect's: those of vLLM 0.32, llama.cpp (b6881), Ollama (0.6) and TGI (3.0).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

Dialect = Literal["vllm", "llamacpp", "ollama", "tgi"]
DIALECTS: Final[tuple[Dialect, ...]] = ("vllm", "llamacpp", "ollama", "tgi")

PIECE: Final = 5
"""Characters of one delta."""


@dataclass(frozen=True)
class Said:
    """A part of a turn: a thought, text, or a call (`name`) with its arguments as `text`."""

    kind: Literal["thought", "text", "call"]
    text: str
    name: str = ""


def text(words: str) -> list[Said]:
    return [Said("text", words)]


def call(name: str, **arguments: object) -> Said:
    return Said("call", json.dumps(arguments), name)


@dataclass
class TextServer:
    """`asked` are the bodies that came. `script` makes a turn of each."""

    script: Callable[[dict[str, Any]], list[Said]]
    dialect: Dialect = "vllm"
    model: str = "toy-text"
    asked: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    """Why a turn ends; by default because it is over."""
    tells_usage: bool = True
    tells_logprobs: bool = True
    breaks_after: int | None = None
    """So many events are sent of the next turn, and then the connection is lost."""
    breaks_always: bool = False
    refuses: tuple[int, dict[str, Any]] | None = None
    """Status and body for the next turn."""
    refuses_if: Callable[[dict[str, Any]], tuple[int, dict[str, Any]] | None] = lambda _: None
    """Status and body for turns that it does not take."""
    fails_with: dict[str, Any] | None = None
    """An event in the middle of the next turn, which is then over."""
    holds: asyncio.Event | None = None
    """What the next turn waits for in its middle."""
    holds_at: int = 3
    """Before which of its events."""
    abandoned: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released by each turn whose client hung up."""

    @property
    def app(self) -> Starlette:
        """Its HTTP."""
        known = {
            "vllm": {"/version": {"version": "0.32.0"}, "/health": {}},
            "llamacpp": {"/health": {"status": "ok"}},
            "ollama": {"/api/version": {"version": "0.6.0"}},
            "tgi": {
                "/info": {"version": "3.0.1", "router": "text-generation-router"},
                "/health": {},
            },
        }[self.dialect]
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                *(Route(path, _answering(body)) for path, body in known.items()),
            ]
        )

    async def _models(self, _: Request) -> Response:
        owner = {"vllm": "vllm", "llamacpp": "llamacpp", "ollama": "library", "tgi": self.model}
        row: dict[str, Any] = {"id": self.model, "object": "model", "owned_by": owner[self.dialect]}
        if self.dialect == "vllm":
            row["max_model_len"] = 8192
        return JSONResponse({"object": "list", "data": [row]})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        if self.refuses is not None:
            (status, refusal), self.refuses = self.refuses, None
            return JSONResponse(refusal, status_code=status)
        if (found := self.refuses_if(body)) is not None:
            return JSONResponse(found[1], status_code=found[0])
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        left = self.breaks_after
        if not self.breaks_always:
            self.breaks_after = None
        held, self.holds = self.holds, None
        failure, self.fails_with = self.fails_with, None
        try:
            async for frame in self._frames(body, left, failure, held):
                yield frame
        except asyncio.CancelledError:
            self.abandoned.release()
            raise

    async def _frames(
        self,
        body: dict[str, Any],
        left: int | None,
        failure: dict[str, Any] | None,
        held: asyncio.Event | None,
    ) -> AsyncIterator[str]:
        for number, event in enumerate(self._events(body)):
            if left is not None and number >= left:
                raise ConnectionResetError
            if failure is not None and number == 3:
                yield f"data: {json.dumps(failure)}\n\n"
                return
            if held is not None and number == self.holds_at:
                yield ": a comment is no token\n\n"
                await held.wait()
            yield f"data: {json.dumps(event)}\n\n"
        yield "data: [DONE]\n\n"

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        said = self.script(body)
        base = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.model,
        }
        if self.dialect in {"vllm", "llamacpp"}:
            first = {"role": "assistant", "content": "" if self.dialect == "vllm" else None}
            yield {**base, "choices": [_choice(first)]}
        alternatives = body.get("top_logprobs", 0) if body.get("logprobs") else None
        for delta in self._deltas(said):
            choice = _choice(delta)
            if alternatives is not None and self.tells_logprobs:
                choice["logprobs"] = _likely(delta.get("content") or "", alternatives)
            yield {**base, "choices": [choice]}
        reason = self.finish
        if reason is None:
            # TGI ends with "stop" behind a call, too.
            calls = any(one.kind == "call" for one in said) and self.dialect != "tgi"
            reason = "tool_calls" if calls else "stop"
        end: dict[str, Any] = (
            {} if self.dialect != "ollama" else {"role": "assistant", "content": ""}
        )
        last = {**base, "choices": [_choice(end, reason)]}
        asks = body.get("stream_options", {}).get("include_usage") and self.tells_usage
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        if self.dialect == "vllm":
            usage["prompt_tokens_details"] = {"cached_tokens": 4}  # type: ignore[assignment]
        if asks and self.dialect == "llamacpp":
            yield {**last, "usage": usage, "timings": {"predicted_n": 7}}
            return
        yield last
        if asks:
            yield {**base, "choices": [], "usage": usage}

    def _deltas(self, said: list[Said]) -> Iterator[dict[str, Any]]:
        calls = 0
        for part in said:
            if part.kind == "call":
                yield from self._call(part, calls)
                calls += 1
                continue
            thought = "reasoning" if self.dialect in {"vllm", "ollama"} else "reasoning_content"
            key = thought if part.kind == "thought" else "content"
            for piece in _pieces(part.text):
                delta = {key: piece}
                if self.dialect in {"ollama", "tgi"}:
                    delta = {"role": "assistant", "content": "", **delta}
                yield delta

    def _call(self, said: Said, index: int) -> Iterator[dict[str, Any]]:
        function = {"name": said.name, "arguments": said.text}
        if self.dialect == "ollama":
            whole = {"id": f"call_{index}", "index": 0, "type": "function", "function": function}
            yield {"role": "assistant", "content": "", "tool_calls": [whole]}
            return
        front = {"name": said.name, "arguments": ""}
        call_id = "" if self.dialect == "tgi" else f"call-{index}"
        yield {
            "tool_calls": [{"index": index, "id": call_id, "type": "function", "function": front}]
        }
        for piece in _pieces(said.text):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _choice(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _likely(words: str, alternatives: int) -> dict[str, Any]:
    """Tokens of two bytes each, some of which are half a character."""
    content = words.encode()
    told = []
    for at in range(0, len(content), 2):
        piece = content[at : at + 2]
        token = {"token": piece.decode("utf-8", "replace"), "logprob": -0.5, "bytes": list(piece)}
        others = [{"token": "?", "logprob": -2.0, "bytes": None}] * alternatives
        told.append({**token, "top_logprobs": others})
    return {"content": told}


def _pieces(words: str) -> Iterator[str]:
    return (words[at : at + PIECE] for at in range(0, len(words), PIECE))


def _answering(body: dict[str, Any]) -> Callable[[Request], Response]:
    return lambda _: JSONResponse(body)
