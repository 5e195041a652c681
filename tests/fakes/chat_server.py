"""A server of a model with a chat template: a real tokenizer, a small template, scripted words.

`POST /tokenize` renders by the template and makes ids of that as vLLM does: what spells a marker
is one, whoever wrote it. `POST /v1/completions` says what a script makes of the conversation.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

MODEL: Final = "toy-chat"
SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>")
OPENING: Final = "<|im_start|>assistant\n"
NO_THOUGHT: Final = "<think>\n\n</think>\n\n"
VERSION: Final = "0.10.2"
"""Of vLLM, which knew no grammars that bind a turn: nor does this."""
HELD_AT: Final = 12
WINDOW: Final = 8192

Script = "Callable[[str], str]"
"""From all that stands before the assistant's turn to all that it says in it, markers spelled."""


class Refused(Exception):
    """The template raises this for a conversation."""


def toy_tokenizer() -> Tokenizer:
    """Bytes, some words of English, and ChatML's markers."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [
        ("t", "h"),
        ("th", "e"),
        ("i", "n"),
        ("o", "u"),
        ("Ġ", "the"),
        ("e", "r"),
        ("s", "t"),
        ("Ċ", "Ċ"),
    ]
    words = [*letters, *("".join(pair) for pair in pairs)]
    vocab = {word: at for at, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in MARKERS])
    return tokenizer


def write_model(folder: Path) -> Path:
    """The folder with what a gateway needs of the model; returns it."""
    tokenizer = toy_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = [tokenizer.token_to_id(text) for text in ("<|im_end|>", "<|endoftext|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 320}))
    return folder


def chatml(body: dict[str, Any], *, opens_thoughts: bool = False) -> str:
    """The template: that of Qwen3, in short. With `opens_thoughts` a turn begins in a thought."""
    messages = list(body["messages"])
    texts = []
    system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
    if tools := body.get("tools"):
        listed = "\n".join(json.dumps(tool) for tool in tools)
        system = f"{system}\n\n<tools>\n{listed}\n</tools>".lstrip()
    if system:
        texts.append(f"<|im_start|>system\n{system}<|im_end|>\n")
    texts += map(_message, messages)
    if body.get("add_generation_prompt", True):
        texts.append(OPENING)
        if not body.get("chat_template_kwargs", {}).get("enable_thinking", True):
            texts.append(NO_THOUGHT)
        elif opens_thoughts:
            texts.append("<think>\n")
    return "".join(texts)


def thinking_last(body: dict[str, Any]) -> str:
    """One that writes a thought, if an empty one, before what the assistant says last, as Qwen3's
    does.
    """
    *before, last = body["messages"]
    thinks = {"reasoning": " "} if last["role"] == "assistant" else {}
    return chatml({**body, "messages": [*before, {**last, **thinks}]})


def unopened(body: dict[str, Any]) -> str:
    """One without an opening of turns, as Mistral's have none."""
    return chatml({**body, "add_generation_prompt": False}).replace(OPENING, "")


def _message(message: dict[str, Any]) -> str:
    role, content = message["role"], message["content"]
    if role == "tool":
        return f"<|im_start|>user\n<tool_response>\n{content}\n</tool_response><|im_end|>\n"
    if role == "assistant":
        if thought := message.get("reasoning"):
            content = f"<think>\n{thought}\n</think>\n\n{content}"
        for call in message.get("tool_calls", ()):
            function = call["function"]
            front = "\n" if content else ""
            content += f"{front}{called(function['name'], function['arguments'])}"
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def called(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    body = f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


@dataclass
class ChatServer:
    """`asked` are the bodies of completions, `rendered` those of renderings. While `is_deaf` it
    renders nothing.
    """

    script: Callable[[str], str]
    template: Callable[[dict[str, Any]], str] = chatml
    asked: list[dict[str, Any]] = field(default_factory=list)
    rendered: list[dict[str, Any]] = field(default_factory=list)
    is_deaf: bool = False
    is_starting: bool = False
    """It is not there yet."""
    goes_on: Callable[[str], str] = str
    """What is said behind the beginning of a turn that the script did not say."""
    breaks_after: int | None = None
    """So many ids are said by the next completion, and then the connection is lost."""
    window: int = WINDOW
    """Context length."""
    holds_turn: int | None = None
    """The completion of this number (from 0) says a few ids, and then waits for `released`."""
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.tokenizer = toy_tokenizer()

    @property
    def app(self) -> Starlette:
        """Its HTTP."""
        return Starlette(
            routes=[
                Route("/version", lambda _: JSONResponse({"version": VERSION})),
                Route("/health", lambda _: JSONResponse({}, 503 if self.is_starting else 200)),
                Route("/v1/models", self._models),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
            ]
        )

    def spelled(self, ids: list[int]) -> str:
        """The text of ids, markers among it."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def ids(self, text: str) -> list[int]:
        """The ids of a text, in which markers are spelled."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def prompt(self, at: int = -1) -> str:
        """What a completion was asked for behind."""
        return self.spelled(self.asked[at]["prompt"])

    def _models(self, _: Request) -> JSONResponse:
        row = {"id": MODEL, "object": "model", "max_model_len": self.window}
        return JSONResponse({"object": "list", "data": [row]})

    async def _tokenize(self, request: Request) -> Response:
        body = await request.json()
        self.rendered.append(body)
        if self.is_deaf:
            return JSONResponse({"error": {"message": "out of order"}}, status_code=503)
        try:
            text = self.template(body)
        except Refused as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=400)
        ids = self.ids(text)
        return JSONResponse({"count": len(ids), "max_model_len": self.window, "tokens": ids})

    async def _complete(self, request: Request) -> StreamingResponse:
        body = await request.json()
        self.asked.append(body)
        before, _, begun = self.spelled(body["prompt"]).rpartition(OPENING)
        said = self.script(before)
        if begun.startswith(NO_THOUGHT):
            said = NO_THOUGHT + said
        rest = said.removeprefix(begun) if said.startswith(begun) else self.goes_on(begun)
        ids = self.ids(f"{rest}<|im_end|>")
        finish = "stop" if len(ids) <= body["max_tokens"] else "length"
        ids = ids[: body["max_tokens"]]
        broken, self.breaks_after = self.breaks_after, None
        is_held = self.holds_turn == len(self.asked) - 1

        async def events() -> AsyncIterator[str]:
            for at, token in enumerate(ids):
                if at == broken:
                    raise ConnectionResetError
                if at == HELD_AT and is_held:
                    await self.released.wait()
                yield _event([token], finish if at == len(ids) - 1 else None)
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


def _event(ids: list[int], finish: str | None) -> str:
    choice = {"index": 0, "text": "", "finish_reason": finish, "token_ids": ids}
    return f"data: {json.dumps({'object': 'text_completion', 'choices': [choice]})}\n\n"
