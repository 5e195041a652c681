"""Probes of a server's chat endpoint, for models without token ids."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from struct import pack
from typing import TYPE_CHECKING, Any, Final
from zlib import compress, crc32

import orjson

from gateway.errors import UpstreamRejected
from gateway.models.format import SEES
from gateway.text_ids import packed_lines

if TYPE_CHECKING:
    from array import array
    from collections.abc import Awaitable, Callable, Collection

    from gateway.generation import ReportedUsage, TokenChunk

    Ask = Callable[[array[int], "Heard"], Awaitable[None]]
    """Generate a few tokens. Raises `UpstreamError`."""

_OBJECT: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_TOOL: Final = {"type": "function", "function": {"name": "look", "parameters": _OBJECT}}
_FORMAT: Final = {"type": "json_schema", "json_schema": {"name": "empty", "schema": _OBJECT}}
REMEDIES: Final = {
    "tools": "Start the server so that it calls tools (vLLM: --enable-auto-tool-choice and "
    "--tool-call-parser; llama.cpp: --jinja), or set calls of the model to none.",
    "formats": "Requests with text.format will fail: upgrade the server, or do without them.",
    "images": "Start the server with the model's projector, or take image from its modalities.",
}


@dataclass
class Heard:
    """Token sink that keeps everything."""

    ids: list[int] = field(default_factory=list)
    usage: ReportedUsage | None = None

    def on_tokens(self, chunk: TokenChunk) -> bool:
        self.ids += chunk.ids
        self.usage = chunk.usage
        return True

    async def room(self) -> bool:
        # Always continues: a probe generates a few tokens.
        return True


@dataclass(frozen=True)
class Taken:
    """Abilities of a chat endpoint; `refused`: those it lacks, with the server's reasons."""

    taken: tuple[str, ...]
    refused: dict[str, str]
    tells_usage: bool


async def examine(ask: Ask, abilities: Collection[str]) -> Taken:
    """Raise `UpstreamError` for any failure but a refusal."""
    plain = Heard()
    await ask(_prompt({}), plain)
    taken, refused = [], {}
    for name, lines in _probes(abilities).items():
        try:
            await ask(lines, Heard())
        except UpstreamRejected as error:
            refused[name] = error.reason
        else:
            taken.append(name)
    return Taken(tuple(taken), refused, plain.usage is not None)


def _probes(abilities: Collection[str]) -> dict[str, array[int]]:
    probes = {"formats": _prompt({"response_format": _FORMAT})}
    if "tools" in abilities:
        probes["tools"] = _prompt({"tools": [_TOOL]})
    if SEES in abilities:
        image = {"type": "image_url", "image_url": {"url": _pixel()}}
        probes["images"] = _prompt({}, [{"type": "text", "text": "What is it?"}, image])
    return probes


def _prompt(options: dict[str, Any], content: object = "Say hello.") -> array[int]:
    message = {"role": "user", "content": content}
    return packed_lines((orjson.dumps(options), orjson.dumps(message)))


def _pixel() -> str:
    # A grey PNG of 32 by 32 pixels: servers refuse smaller ones.
    side = 32
    rows = compress((b"\0" + b"\x80" * side) * side)
    head = pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", rows), (b"IEND", b"")
    image = b"\x89PNG\r\n\x1a\n" + b"".join(
        pack(">I", len(data)) + kind + data + pack(">I", crc32(kind + data))
        for kind, data in chunks
    )
    return f"data:image/png;base64,{b64encode(image).decode()}"
