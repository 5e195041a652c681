"""The two ways to ask for a stream, and what a whole answer must be: a wrong one voids the run.

`first_word` is in the first bytes that hold text of the model. `check` looks at what every stream
must have and returns how many events carried the ids; `check_in_full` looks at all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events, parse_stream, texts

if TYPE_CHECKING:
    from tests.load.script import Turn

PROMPT: Final = "Tell me, in a few words, what the keeper of the lighthouse writes into the book."
_CHUNK_FRAMING: Final = re.compile(rb"\r\n[0-9a-f]+\r\n")
_LAST_EVENT: Final = b"event: response.completed\ndata: "
_DONE: Final = b"\n\ndata: [DONE]\n\n"


class WrongAnswer(Exception):
    """A stream that is not what the backend said."""


def unchunked(data: bytes) -> bytes:
    """The body of a whole chunked answer: no event has CR LF in it, so every one is framing."""
    head, _, rest = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise WrongAnswer(data[:500].decode("utf-8", "replace"))
    return _CHUNK_FRAMING.sub(b"", b"\r\n" + rest.removesuffix(b"\r\n"))


@dataclass(frozen=True, slots=True)
class Completions:
    """vLLM's tokens, as the backend sends them."""

    prompt: list[int]
    path: str = "/v1/completions"
    first_word: bytes = b'"text":" '

    def body(self, model: str, length: int) -> bytes:
        return orjson.dumps(
            {
                "model": model,
                "prompt": self.prompt,
                "max_tokens": length,
                "stream": True,
                "return_token_ids": True,
                "stream_options": {"include_usage": True},
            }
        )

    def check(self, answer: bytes, expected: Turn) -> int:
        frames = answer.count(b'"token_ids":[')
        if frames != len(expected.ids) or not answer.endswith(_DONE):
            raise WrongAnswer(f"{frames} frames of {len(expected.ids)}, {answer[-200:]!r}")
        return frames

    def check_in_full(self, answer: bytes, expected: Turn) -> None:
        frames = [orjson.loads(one[6:]) for one in answer.split(b"\n\n")[:-2]]
        choices = [choice for one in frames for choice in one["choices"]]
        if [token for choice in choices for token in choice["token_ids"]] != list(expected.ids):
            raise WrongAnswer("the ids are not the backend's")


@dataclass(frozen=True, slots=True)
class Responses:
    """The gateway's events."""

    store: bool
    path: str = "/v1/responses"
    first_word: bytes = b".delta\ndata"

    def body(self, model: str, length: int) -> bytes:
        return orjson.dumps(
            {
                "model": model,
                "input": PROMPT,
                "max_output_tokens": length,
                "store": self.store,
                "stream": True,
            }
        )

    def check(self, answer: bytes, expected: Turn) -> int:
        at = answer.rfind(_LAST_EVENT)
        if at < 0 or not answer.endswith(_DONE):
            raise WrongAnswer(f"no completed response at the end: {answer[-500:]!r}")
        response = orjson.loads(answer[at + len(_LAST_EVENT) : -len(_DONE)])["response"]
        _check_response(response, expected)
        return answer.count(self.first_word)

    def check_in_full(self, answer: bytes, expected: Turn) -> None:
        events = parse_stream(answer.decode())
        check_stream(as_events(events))
        deltas = (one["delta"] for one in events if one["type"] == "response.output_text.delta")
        if "".join(deltas) != expected.answer:
            raise WrongAnswer("the deltas are not the answer")


def _check_response(response: dict[str, Any], expected: Turn) -> None:
    tokens = response["usage"]["output_tokens"]
    if response["status"] != "completed" or tokens != len(expected.ids):
        raise WrongAnswer(f"{response['status']} with {tokens} of {len(expected.ids)} tokens")
    if texts(response) != [expected.answer]:
        raise WrongAnswer("the text is not the backend's")


Dialect = Completions | Responses
