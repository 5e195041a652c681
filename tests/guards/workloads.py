"""What the guards watch: the steps that every token goes through, each on a fixed input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.api import sse
from gateway.entries import Tokens, TurnStarted
from gateway.eventlog.fold.fold import Fold
from gateway.generation import Framing, Sampling
from gateway.models.harmony.framing import ASSISTANT, FINAL_HEADER, OPENING
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.vocabulary import CHANNEL, END, MESSAGE, RETURN, START, Vocabulary
from gateway.upstreams.completions import CompletionReader
from tests.fakes.response_heads import NO_RULES, response_head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.protocol.events import Event

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
    singles = [(token,) for token in ids]
    parsed, folded = partial(_parser, vocabulary), partial(_fold, vocabulary)
    return {
        "parser, one id a read": Workload(TOKENS, TOKENS, partial(parsed, singles), Parser, "feed"),
        "parser, all ids in one": Workload(
            TOKENS, 1, partial(parsed, [tuple(ids)]), Parser, "feed"
        ),
        "frame reader, one id a read": Workload(
            TOKENS, TOKENS, partial(_reader, ids, 1), CompletionReader, "feed"
        ),
        "frame reader, sixteen frames a read": Workload(
            TOKENS,
            TOKENS // READ_TOKENS,
            partial(_reader, ids, READ_TOKENS),
            CompletionReader,
            "feed",
        ),
        "fold, one id an entry": Workload(TOKENS, TOKENS, partial(folded, singles), Fold, "apply"),
        "fold, all ids in one": Workload(TOKENS, 1, partial(folded, [tuple(ids)]), Fold, "apply"),
        "fold, a message with its header": Workload(
            1, 1, partial(folded, [_message(ids[0])], OPENING), Fold, "apply"
        ),
        "frames": Workload(
            TOKENS, TOKENS, partial(_frames, folded, singles, obfuscate=False), sse, "plain"
        ),
        "padded frames": Workload(
            TOKENS, TOKENS, partial(_frames, folded, singles, obfuscate=True), sse, "obfuscated"
        ),
    }


def _message(token: int) -> tuple[int, ...]:
    """A thought of one id, and the beginning of an answer."""
    return (CHANNEL, _ANALYSIS, MESSAGE, token, END, START, ASSISTANT, *FINAL_HEADER, token)


def _parser(vocabulary: Vocabulary, reads: Sequence[tuple[int, ...]]) -> Callable[[], object]:
    parser = Parser(vocabulary, frozenset())
    parser.feed(FINAL_HEADER)
    return lambda: [parser.feed(read) for read in reads]


def _reader(ids: Sequence[int], frames: int) -> Callable[[], object]:
    reader = CompletionReader(
        "gpu-1", Sampling(max_tokens=1 << 20), stop_ids=(RETURN,), frame_bytes_max=1 << 20
    )
    said = [_frame(token) for token in ids]
    reads = [b"".join(said[at : at + frames]) for at in range(0, len(said), frames)]
    return lambda: [reader.feed(read) for read in reads]


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


def _fold(
    vocabulary: Vocabulary,
    entries: Sequence[tuple[int, ...]],
    header: Sequence[int] = FINAL_HEADER,
) -> Callable[[], list[list[Event]]]:
    fold = _begun(vocabulary, entries[0][:1] if header is FINAL_HEADER else ())
    return lambda: [fold.apply(Tokens(entry)) for entry in entries]


def _begun(vocabulary: Vocabulary, said: Sequence[int]) -> Fold:
    """A turn that has begun, and has said so much of its answer, if anything."""
    fold = Fold(
        response_head(),
        lambda trace: Parser(vocabulary, frozenset(), trace=trace),
        Framing(OPENING, RETURN, END),
        NO_RULES,
    )
    fold.apply(TurnStarted(3))
    if said:
        fold.apply(Tokens((*FINAL_HEADER, *said)))
    return fold


def _frames(
    folded: Callable[[Sequence[tuple[int, ...]]], Callable[[], list[list[Event]]]],
    entries: Sequence[tuple[int, ...]],
    *,
    obfuscate: bool,
) -> Callable[[], object]:
    events = [event for shown in folded(entries)() for event in shown]
    encode = sse.obfuscated if obfuscate else sse.plain
    return lambda: [encode(event) for event in events]
