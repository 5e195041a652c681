"""The vocabulary between the stages: prompt, token chunk, segment events, token usage.

`harmony`, `upstreams`, `output` and `runs` speak it to each other without knowing each other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

PREAMBLE = -1
"""The `Span.source` of what is rendered from no item: the system and developer messages."""


class FinishReason(Enum):
    """Why a turn ended well. Every other ending is an `UpstreamError`."""

    STOP = "stop"  # a stop id: <|return|>, <|call|> or <|endoftext|>
    LENGTH = "length"  # max_tokens reached


@dataclass(frozen=True, slots=True)
class Span:
    """`ids[start:end]` of a prompt were rendered from the context item at index `source`."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a backend is asked to continue: token ids, ending with `<|start|>assistant`."""

    ids: list[int]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Explicit sampling parameters; none is ever left to a backend's default."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def after(self, generated: int) -> Sampling:
        """The same for what is left once `generated` ids are there.

        A backend that goes on starts its random numbers anew: with the same seed it would draw
        those again that the first ids were drawn with, so the seed is derived from the place.
        """
        seed = self.seed
        if seed is not None and generated:
            digest = hashlib.sha256(b"%d %d" % (seed, generated)).digest()
            seed = int.from_bytes(digest[:8], "big") >> 1
        return replace(self, max_tokens=self.max_tokens - generated, seed=seed)


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One raw completion: `model` is the public name, `cache_salt` isolates a tenant's prefixes."""

    request_id: str
    model: str
    prompt_ids: list[int]
    sampling: Sampling
    cache_salt: str


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """What one read from a backend brought: any number of ids, and at the end why it ended."""

    ids: list[int]
    finish: FinishReason | None = None
    cached_tokens: int | None = None


class Upstream(Protocol):
    """One inference server.

    `generate` yields chunks of which exactly the last has a `finish`. It raises
    `UpstreamUnavailable` or `UpstreamRejected` before the first id, `UpstreamFailed` after it.
    Closing the iterator (`aclose`) aborts the request at the backend.
    """

    name: str

    def generate(self, request: TokenRequest) -> AsyncGenerator[TokenChunk, None]: ...

    def hang_up_on_silent(self, silent_s: float, *, begun_only: bool) -> int:
        """Break off the generations that said nothing for `silent_s`; how many those are.

        With `begun_only` those that have not said anything yet are left to think.
        """
        ...


class SegmentKind(Enum):
    """What a contiguous piece of output becomes: one item each."""

    REASONING = "reasoning"  # analysis channel
    COMMENTARY = "commentary"  # a preamble for the user, before or between calls
    FINAL = "final"  # the answer
    FUNCTION_CALL = "function_call"  # commentary (or any channel) to=functions.NAME


@dataclass(frozen=True, slots=True)
class SegmentStarted:
    """A segment opens. `name` is the function's name for a call, otherwise empty."""

    kind: SegmentKind
    name: str = ""


@dataclass(frozen=True, slots=True)
class SegmentText:
    """More text of the open segment; never empty, never half a character, never a marker."""

    text: str


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """The open segment closes.

    `start:end` are the ids of its whole message, header and terminator included, counted from the
    first id fed to this parser. `verbatim` is False when a recovery rule had a part in it: such a
    message is rendered anew for the next prompt instead of being repeated as it was. `complete`
    is False for a message that was cut off.
    """

    start: int
    end: int
    complete: bool = True
    verbatim: bool = True


SegmentEvent = SegmentStarted | SegmentText | SegmentEnded


class TokenParser(Protocol):
    """Ids of one turn → segments. Total: no sequence of ids makes it raise.

    The result does not depend on how the ids were cut into calls of `feed`, except that text may
    be cut into more or fewer `SegmentText`s.
    """

    recoveries: dict[str, int]
    """How often each recovery rule fired, by name."""

    reasoning_tokens: int
    """Ids inside the bodies of reasoning segments so far."""

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]: ...

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        """The turn is over (None: it was broken off). Closes what is open."""
        ...


@dataclass(slots=True)
class TokenUsage:
    """Token counts of one response, exact because they are counted from ids.

    `recomputed_tokens` were read again by another backend that went on; nobody pays for them.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RenderedItem:
    """An output item with the ids that stand for it in the next prompt (None: render it anew)."""

    item: dict[str, object] = field(hash=False)
    ids: tuple[int, ...] | None = None
