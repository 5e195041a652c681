"""What the guards watch: the way of every token from a backend or the log to a client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.api import sse
from gateway.entries import Tokens, TurnStarted
from gateway.eventlog.fold.fold import Fold
from gateway.generation import Framing, Sampling
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.tokenizer import (
    ASSISTANT,
    CHANNEL,
    END,
    FINAL_HEADER,
    MESSAGE,
    OPENING,
    RETURN,
    START,
    Vocabulary,
)
from gateway.upstreams.token_readers import CompletionReader
from tests.fakes.fold_formats import parsed_by
from tests.fakes.response_heads import NO_RULES, response_head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


TOKENS: Final = 256
READ_TOKENS: Final = 16
_TEXT: Final = (
    "The quick brown fox is not lazy: it jumps over 13 dogs, naïve ones, and says 你好 to all. "
)
_ANALYSIS: Final = 35644


@dataclass(frozen=True, slots=True)
class Workload:
    """`prepare` makes, outside of the count, what goes through `tokens` tokens when it is called.

    Its work begins `begins` times, in the function `name` of `owner`: a mutation makes it heavier.
    """

    tokens: int
    begins: int
    prepare: Callable[[], Callable[[], object]]
    owner: Any
    name: str


def workloads() -> dict[str, Workload]:
    """All of them, by what the guards call them."""
    vocabulary = Vocabulary.load()
    ids = (vocabulary.encode(_TEXT) * TOKENS)[:TOKENS]

    def streamed(ids_each: int, *, obfuscate: bool = False) -> Workload:
        work = partial(_streamed, vocabulary, ids, ids_each, obfuscate=obfuscate)
        return Workload(TOKENS, TOKENS // ids_each, work, Fold, "apply")

    return {
        "streamed, one id a read": streamed(1),
        "streamed, one id a read, padded": streamed(1, obfuscate=True),
        "streamed, sixteen ids a read": streamed(READ_TOKENS),
        "replayed, a turn as one entry": Workload(
            TOKENS, 1, partial(_replayed, vocabulary, _turn(ids)), Fold, "apply"
        ),
    }


def _turn(ids: Sequence[int]) -> tuple[int, ...]:
    """A thought of one id, and an answer."""
    return (CHANNEL, _ANALYSIS, MESSAGE, ids[0], END, START, ASSISTANT, *FINAL_HEADER, *ids)


def _streamed(
    vocabulary: Vocabulary, ids: Sequence[int], ids_each: int, *, obfuscate: bool
) -> Callable[[], object]:
    """From what a backend writes to what a client reads, in the middle of an answer."""
    reader = CompletionReader(
        "gpu-1", Sampling(max_tokens=1 << 20), stop_ids=(RETURN,), frame_bytes_max=1 << 20
    )
    fold = _begun(vocabulary, ids[:1])
    said = [_frame(token) for token in ids]
    reads = [b"".join(said[at : at + ids_each]) for at in range(0, len(said), ids_each)]
    encode = sse.obfuscated if obfuscate else sse.plain

    def work() -> list[bytes]:
        frames = []
        for read in reads:
            chunk = reader.feed(read)
            assert chunk is not None
            frames += [encode(one) for one in fold.apply(Tokens(tuple(chunk.ids)))]
        return frames

    return work


def _replayed(vocabulary: Vocabulary, entry: tuple[int, ...]) -> Callable[[], object]:
    """From what is stored to what a client reads."""
    fold = _begun(vocabulary, ())
    return lambda: [sse.plain(one) for one in fold.apply(Tokens(entry))]


def _frame(token: int) -> bytes:
    """As vLLM writes it."""
    choice = {"index": 0, "text": "?", "logprobs": None, "finish_reason": None}
    event = {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1_795_000_000,
        "model": "gpt-oss-20b",
        "choices": [{**choice, "stop_reason": None, "token_ids": [token]}],
        "usage": None,
    }
    return b"data: %b\n\n" % orjson.dumps(event)


def _begun(vocabulary: Vocabulary, said: Sequence[int]) -> Fold:
    """A turn that has begun, and has said so much of its answer, if anything."""
    fold = Fold(
        response_head(),
        parsed_by(
            lambda trace: Parser(vocabulary, frozenset(), trace=trace),
            Framing(OPENING, RETURN, END),
        ),
        NO_RULES,
    )
    fold.apply(TurnStarted(3))
    if said:
        fold.apply(Tokens((*FINAL_HEADER, *said)))
    return fold
