"""Log of a response: a closed set of entries, of which all that a client sees is a fold.

The fold of an entry depends only on the request and the entries before it: an entry that needs the
clock carries the time.

Packed form, version 1. Numbers are unsigned LEB128; ids and floats have 32 bits, little-endian;
bytes, and texts in UTF-8, have their length in front as a number.

    packed       version byte, then entries
    entry        number: length of the body times 16 plus the tag, then the body
    2 Tokens     ids
    8 Tokens     number of ids, ids, then for each the float of its logprob, a byte: how many
                 alternatives, and each of these as id and float
    0 Text       `gateway.text_ids.packed_text`; with logprobs FF, this as bytes, then for each id
                 a number: 0 if unknown, else 1 plus the tokens that begin there, as in 8, but with
                 bytes in place of ids

`_FORMS` has the bodies of all other tags. Tags and indexes are never given a new meaning; a form
that older code cannot read, and any tag after 15, needs another version byte. Tags from 12 on occur
only in responses with grants (`TOOLS_FOLD_VERSION`); tag 0 and the last two finish reasons only in
those of text.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast, get_args

from msgspec import Struct

from gateway.generation import (
    IN_TOKEN,
    UNTOLD,
    FinishReason,
    ReportedUsage,
    TextLogprob,
    TextToken,
    TokenLogprob,
)
from gateway.text_ids import packed_text, unpacked_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gateway.generation import Likelihood

FOLD_VERSION = 1
"""Version for responses without grants. A release that folds an existing log to other events raises
it."""
TOOLS_FOLD_VERSION: Final = 2
"""Version for responses with grants, which a process without hosted tools leaves to others."""
FOLD_VERSIONS: Final = (FOLD_VERSION, TOOLS_FOLD_VERSION)
HANDLE_BYTES_MAX: Final = 1024
"""A handle is an id at some executor, and not meant for data."""
PACKING_VERSION: Final = 1
VERSION_BYTE: Final = bytes([PACKING_VERSION])

Status = Literal["completed", "incomplete", "failed", "cancelled"]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """Start of a model call. `prefill` follows `<|start|>assistant` in the prompt.

    `input_tokens` are those the caller pays for: the whole prompt on the first turn and behind the
    result of a tool, none when the gateway continues a turn by itself.
    """

    input_tokens: int
    prefill: tuple[int, ...] = ()


# No dataclass: one is made for each token, which takes a quarter of the time.
class Tokens(Struct, frozen=True, gc=False):
    ids: tuple[int, ...]
    logprobs: tuple[Likelihood, ...] = ()


class Text(Tokens, frozen=True, gc=False):
    """Characters and marks of a server that returns text (`gateway.text_ids`)."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Silence; it folds to `response.in_progress`, which real clients count."""


Step = Literal[
    "clock",  # the next entry was written at this time
    "replica",  # a replica begins with the run, or goes on with it
    "backend",  # the request was sent to a backend
    "left",  # the backend was lost, or had to be left
    "token",  # the first ids of a backend came
    "message",  # the body of a message of this kind began
    "commit",  # a commit of the log ended that took this many milliseconds, which is long
]


@dataclass(frozen=True, slots=True)
class Mark:
    """Unix time of a step, for operators; it folds to no event. `place` is a replica, a backend, a
    kind of message, or a number.
    """

    step: Step
    at_ms: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """First entry of a background response, which waits for its turn."""


@dataclass(frozen=True, slots=True)
class Hop:
    """Continuation of the turn elsewhere, which clients do not see."""

    reason: Literal["backend", "replica"]
    recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Start of the part of a turn that only the gateway checks: bodies whose rules the backend does
    not enforce, or in which it began, are shown only after the turn.
    """


@dataclass(frozen=True, slots=True)
class Repair:
    """Withdrawal of the last `voided` ids of the open turn, whose text no client has seen. With 0
    it only records what the gateway did.
    """

    voided: int
    rule: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """Summary of the context before this response, before the first turn. `seal` is its form for
    the client; the counts are what it took to make it.
    """

    ids: tuple[int, ...]
    seal: str
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TurnEnded:
    finish: FinishReason
    cached_tokens: int = 0
    usage: ReportedUsage | None = None


@dataclass(frozen=True, slots=True)
class ToolsListed:
    """Tools of an MCP server before the first turn, or the error: JSON as clients see it."""

    label: str
    tools: bytes = b"[]"
    error: bytes = b""


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """Start of a hosted call, committed before the call leaves the process.

    A replica that takes over repeats a call without an end only if it is `repeatable`. `ordinal`
    counts hosted calls from 0; a second entry with the same one is a second attempt. `shown` is the
    JSON object of what the item shows from now on; empty: nothing new.
    """

    ordinal: int
    repeatable: bool = False
    shown: bytes = b""


@dataclass(frozen=True, slots=True)
class ToolHandle:
    ordinal: int
    handle: bytes

    def __post_init__(self) -> None:
        if not 0 < len(self.handle) <= HANDLE_BYTES_MAX:
            raise ValueError("the handle of a tool is empty, or too long")


ToolOutcome = Literal[
    "ok",
    "tool_error",  # the tool says that it failed
    "transport_error",
    "timeout",
    "unknown",  # nobody knows whether it had an effect
    "refused",  # it may not be called like this; nothing ran
    "cancelled",
    "over_budget",
]


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """End of a hosted call. `ids` are the message of the result, which counts as input.

    `shown` is what the item shows in the end, `state` JSON that later calls need and nobody is
    shown (`tools.tool_contract.ToolState`).
    """

    ordinal: int
    ids: tuple[int, ...]
    outcome: ToolOutcome = "ok"
    shown: bytes = b""
    state: bytes = b""

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("a tool's result needs ids")


@dataclass(frozen=True, slots=True)
class Finished:
    """End of the response, at `at` (Unix seconds). Always the last entry, always exactly one.

    Raises `ValueError` where clients could not read the terminal event.
    """

    status: Status
    at: int
    reason: str | None = None
    code: str | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        if self.status == "incomplete" and self.reason is None:
            raise ValueError("an incomplete response needs a reason")
        if self.status == "failed" and (self.code is None or self.message is None):
            raise ValueError("a failed response needs a code and a message")


Entry = (
    TurnStarted
    | Tokens
    | Alive
    | Mark
    | TurnEnded
    | Finished
    | Queued
    | Hop
    | Hold
    | Repair
    | Compacted
    | ToolsListed
    | ToolStarted
    | ToolHandle
    | ToolEnded
)


@dataclass(frozen=True, slots=True)
class Singles:
    """`Tokens` with one id each, for the replay of a paced stream; no log holds it."""

    ids: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)


Portion = Entry | Singles
SINGLES_MAX: Final = 256
"""Entries whose deltas fill one write of a stream."""

_TEXT, _TOKENS, _ALIVE, _TOKENS_WITH_LOGPROBS = 0, 2, 3, 8
_TAG_BITS: Final = 4
_ID_BYTES: Final = 4
_ONE_ID: Final = struct.Struct("<BI")
_ONE_ID_HEAD: Final = _ID_BYTES << _TAG_BITS | _TOKENS
"""Head byte of a `Tokens` with one id, and of nothing else."""
_ONE_ID_HEADS: Final = bytes([_ONE_ID_HEAD])
_LOGPROB: Final = struct.Struct("<fB")
_ALTERNATIVE: Final = struct.Struct("<If")
_FLOAT: Final = struct.Struct("<f")
_SPELLED: Final = b"\xff"
"""First byte of a text with logprobs; no text begins with it."""
_NUMBER_BITS_MAX: Final = 63


def pack(entries: Iterable[Entry]) -> bytes:
    """Return the version byte and the entries. Raises `ValueError`."""
    return VERSION_BYTE + b"".join(map(packed_entry, entries))


def packed_entry(entry: Entry) -> bytes:
    """Return an entry without the version byte. Raises as `pack` does."""
    if type(entry) is Tokens and len(entry.ids) == 1 and not entry.logprobs:
        # A paced stream has little else: in one step.
        try:
            return _ONE_ID.pack(_ONE_ID_HEAD, entry.ids[0])
        except struct.error as error:
            raise ValueError(f"an id cannot be packed: {error}") from error
    if isinstance(entry, Tokens):
        tag, body = _pack_text_ids(entry) if isinstance(entry, Text) else _pack_tokens(entry)
    else:
        tag, fields = _TAGS[type(entry)]
        body = b"".join(form.pack(getattr(entry, name)) for name, form in fields)
    return _pack_number(len(body) << _TAG_BITS | tag) + body


def unpack(packed: bytes) -> list[Entry]:
    """Return the packed entries. Raises `ValueError`, and nothing else, for damaged bytes."""
    entries: list[Entry] = []
    for portion in _portions(packed):
        if isinstance(portion, Singles):
            entries += [Tokens((token,)) for token in portion.ids]
        else:
            entries.append(portion)
    return entries


def portions(packed: bytes, skipped: int = 0) -> Iterator[Portion]:
    """Yield the entries behind the first `skipped`, single ids grouped."""
    for portion in _portions(packed):
        if not skipped:
            yield portion
        elif not isinstance(portion, Singles):
            skipped -= 1
        elif skipped < len(portion):
            yield Singles(portion.ids[skipped:])
            skipped = 0
        else:
            skipped -= len(portion)


def _portions(packed: bytes) -> Iterator[Portion]:
    if packed[:1] != VERSION_BYTE:
        raise ValueError("not a packed log of a version that is known here")
    reader = _Reader(packed, 1)
    while True:
        while ids := reader.single_ids():
            yield Singles(ids)
        if reader.is_at_end:
            return
        head = reader.number()
        body = reader.take(head >> _TAG_BITS)
        tag = head & (1 << _TAG_BITS) - 1
        # Most others are these, and they need no reader of their own.
        yield Tokens(_unpack_ids(body)) if tag == _TOKENS else _unpack_entry(tag, _Reader(body))


class _Reader:
    """Reader of values. Raises `ValueError` where the bytes end too early."""

    def __init__(self, content: bytes, position: int = 0) -> None:
        self._content = content
        self._position = position

    @property
    def is_at_end(self) -> bool:
        return self._position == len(self._content)

    def single_ids(self) -> tuple[int, ...]:
        """Read the ids of the next `Tokens` with one id in one pass: a paced stream has little
        else.
        """
        content, start = self._content, self._position
        whole = min((len(content) - start) // _ONE_ID.size, SINGLES_MAX)
        # Each is as long as the others, so their heads stand at even distances.
        heads = content[start : start + whole * _ONE_ID.size : _ONE_ID.size]
        count = whole - len(heads.lstrip(_ONE_ID_HEADS))
        self._position = end = start + count * _ONE_ID.size
        # So do the bytes of their ids: each of the four is copied for all ids at once.
        ids = bytearray(count * _ID_BYTES)
        for at in range(_ID_BYTES):
            ids[at::_ID_BYTES] = content[start + 1 + at : end : _ONE_ID.size]
        return _unpack_ids(ids)

    def take(self, length: int) -> bytes:
        start, self._position = self._position, self._position + length
        if self._position > len(self._content):
            raise ValueError("a log entry is cut off")
        return self._content[start : self._position]

    def rest(self) -> bytes:
        return self.take(len(self._content) - self._position)

    def number(self) -> int:
        number = 0
        for position, shift in enumerate(range(0, _NUMBER_BITS_MAX, 7), self._position):
            if position == len(self._content):
                raise ValueError("a log entry is cut off")
            byte = self._content[position]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._position = position + 1
                return number
        raise ValueError("a number in a log entry is too large")

    def counted_ids(self) -> tuple[int, ...]:
        return _unpack_ids(self.take(self.number() * _ID_BYTES))

    def counted(self) -> bytes:
        return self.take(self.number())

    def text(self) -> str | None:
        length = self.number()
        return self.take(length - 1).decode() if length else None


def _pack_tokens(entry: Tokens) -> tuple[int, bytes]:
    if not entry.logprobs:
        return _TOKENS, _pack_ids(entry.ids)
    if len(entry.logprobs) != len(entry.ids):
        raise ValueError("not one logprob for each id")
    return _TOKENS_WITH_LOGPROBS, _pack_counted(entry.ids) + b"".join(
        map(_pack_logprob, cast("tuple[TokenLogprob, ...]", entry.logprobs))
    )


def _pack_text_ids(entry: Text) -> tuple[int, bytes]:
    text = packed_text(entry.ids)
    if not entry.logprobs:
        return _TEXT, text
    if len(entry.logprobs) != len(entry.ids):
        raise ValueError("not one logprob for each id")
    logprobs = cast("tuple[TextLogprob, ...]", entry.logprobs)
    return _TEXT, _SPELLED + _pack_bytes(text) + b"".join(map(_pack_text_logprob, logprobs))


def _pack_text_logprob(logprob: TextLogprob) -> bytes:
    if logprob.tokens is None:
        return _pack_number(0)
    return _pack_number(1 + len(logprob.tokens)) + b"".join(map(_pack_text_token, logprob.tokens))


def _pack_text_token(token: TextToken) -> bytes:
    _require_numbers(token)
    try:
        own = _pack_bytes(token.piece) + _LOGPROB.pack(token.logprob, len(token.top))
        return own + b"".join(_pack_bytes(other) + _FLOAT.pack(one) for other, one in token.top)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a logprob cannot be packed: {error}") from error


def _pack_bytes(content: bytes) -> bytes:
    return _pack_number(len(content)) + content


def _unpack_text_ids(body: _Reader) -> Text:
    content = body.rest()
    if content[:1] != _SPELLED:
        return Text(unpacked_text(content))
    body = _Reader(content[1:])
    ids = unpacked_text(body.counted())
    entry = Text(ids, tuple(_unpack_text_logprob(body) for _ in ids))
    if not body.is_at_end:
        raise ValueError("a log entry is longer than it should be")
    return entry


def _unpack_text_logprob(body: _Reader) -> TextLogprob:
    count = body.number()
    if count < 2:
        return IN_TOKEN if count else UNTOLD
    return TextLogprob(tuple(_unpack_text_token(body) for _ in range(count - 1)))


def _unpack_text_token(body: _Reader) -> TextToken:
    piece = body.counted()
    logprob, count = _LOGPROB.unpack(body.take(_LOGPROB.size))
    top = []
    for _ in range(count):
        other = body.counted()
        top.append((other, _FLOAT.unpack(body.take(_FLOAT.size))[0]))
    token = TextToken(piece, logprob, tuple(top))
    _require_numbers(token)
    return token


def _unpack_tokens(body: _Reader) -> Tokens:
    ids = body.counted_ids()
    return Tokens(ids, tuple(_unpack_logprob(body) for _ in ids))


def _unpack_entry(tag: int, body: _Reader) -> Entry:
    # Each of the 16 possible tags belongs to some entry.
    entry: Entry
    if tag == _TEXT:
        entry = _unpack_text_ids(body)
    elif tag == _TOKENS_WITH_LOGPROBS:
        entry = _unpack_tokens(body)
    else:
        is_mark = tag == _ALIVE and not body.is_at_end
        kind, fields = (Mark, _MARK) if is_mark else _FORMS[tag]
        entry = kind(**{name: form.read(body) for name, form in fields})
    if not body.is_at_end:
        raise ValueError("a log entry is longer than it should be")
    return entry


def _pick(values: tuple[_T, ...], body: _Reader) -> _T:
    index = body.take(1)[0]
    if index >= len(values):
        raise ValueError("a log entry names something that does not exist")
    return values[index]


def _pack_number(number: int) -> bytes:
    if not 0 <= number < 1 << _NUMBER_BITS_MAX:
        raise ValueError(f"{number} cannot be packed")
    packed = bytearray()
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)


def _pack_text(text: str | None) -> bytes:
    if text is None:
        return _pack_number(0)
    content = text.encode()
    return _pack_number(1 + len(content)) + content


def _pack_logprob(token_logprob: TokenLogprob) -> bytes:
    _require_numbers(token_logprob)
    try:
        own = _LOGPROB.pack(token_logprob.logprob, len(token_logprob.top))
        return own + b"".join(_ALTERNATIVE.pack(*one) for one in token_logprob.top)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a logprob cannot be packed: {error}") from error


def _unpack_logprob(body: _Reader) -> TokenLogprob:
    logprob, count = _LOGPROB.unpack(body.take(_LOGPROB.size))
    top = _ALTERNATIVE.iter_unpack(body.take(count * _ALTERNATIVE.size))
    token_logprob = TokenLogprob(logprob, tuple(top))
    _require_numbers(token_logprob)
    return token_logprob


def _require_numbers(token: TokenLogprob | TextToken) -> None:
    # JSON has no NaN or infinity. Raises `ValueError`.
    if not (math.isfinite(token.logprob) and all(math.isfinite(one) for _, one in token.top)):
        raise ValueError("a logprob in a log entry is not a number")


def _pack_counted(ids: Sequence[int]) -> bytes:
    return _pack_number(len(ids)) + _pack_ids(ids)


def _pack_ids(ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as error:
        raise ValueError(f"an id cannot be packed: {error}") from error


def _unpack_ids(content: bytes | bytearray) -> tuple[int, ...]:
    count, surplus = divmod(len(content), _ID_BYTES)
    if surplus:
        raise ValueError("ids in a log entry are cut off")
    return struct.unpack(f"<{count}I", content)


def _pack_usage(usage: ReportedUsage | None) -> bytes:
    if usage is None:
        return b""
    counts = usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cached_tokens
    return b"".join(map(_pack_number, counts))


def _unpack_usage(body: _Reader) -> ReportedUsage | None:
    return None if body.is_at_end else ReportedUsage(*(body.number() for _ in range(4)))


class _Form(NamedTuple):
    pack: Callable[[Any], bytes]
    read: Callable[[_Reader], Any]


def _one_of(values: tuple[Any, ...]) -> _Form:
    return _Form(lambda value: bytes([values.index(value)]), lambda body: _pick(values, body))


_NUMBER: Final = _Form(_pack_number, _Reader.number)
_BYTES: Final = _Form(_pack_bytes, _Reader.counted)
_LABEL: Final = _Form(lambda text: _pack_bytes(text.encode()), lambda body: body.counted().decode())
_TEXT_OR_NONE: Final = _Form(_pack_text, _Reader.text)
_IDS: Final = _Form(_pack_counted, _Reader.counted_ids)
_USAGE: Final = _Form(_pack_usage, _unpack_usage)
# The last field extends to the end of the body.
_REST: Final = _Form(bytes, _Reader.rest)
_REST_TEXT: Final = _Form(str.encode, lambda body: body.rest().decode())
_REST_IDS: Final = _Form(_pack_ids, lambda body: _unpack_ids(body.rest()))

_FORMS: Final[Mapping[int, tuple[type[Entry], tuple[tuple[str, _Form], ...]]]] = {
    1: (TurnStarted, (("input_tokens", _NUMBER), ("prefill", _REST_IDS))),
    3: (Alive, ()),
    4: (
        TurnEnded,
        (("finish", _one_of(tuple(FinishReason))), ("cached_tokens", _NUMBER), ("usage", _USAGE)),
    ),
    5: (
        Finished,
        (
            ("status", _one_of(get_args(Status))),
            ("at", _NUMBER),
            ("reason", _TEXT_OR_NONE),
            ("code", _TEXT_OR_NONE),
            ("message", _TEXT_OR_NONE),
        ),
    ),
    6: (Queued, ()),
    7: (Hop, (("reason", _one_of(("backend", "replica"))), ("recomputed_tokens", _NUMBER))),
    9: (Hold, ()),
    10: (Repair, (("voided", _NUMBER), ("rule", _REST_TEXT))),
    11: (
        Compacted,
        (
            ("input_tokens", _NUMBER),
            ("cached_tokens", _NUMBER),
            ("output_tokens", _NUMBER),
            ("reasoning_tokens", _NUMBER),
            ("ids", _IDS),
            ("seal", _REST_TEXT),
        ),
    ),
    12: (
        ToolStarted,
        (("ordinal", _NUMBER), ("repeatable", _one_of((False, True))), ("shown", _REST)),
    ),
    13: (
        ToolEnded,
        (
            ("ordinal", _NUMBER),
            ("ids", _IDS),
            ("outcome", _one_of(get_args(ToolOutcome))),
            ("shown", _BYTES),
            ("state", _BYTES),
        ),
    ),
    14: (ToolsListed, (("label", _LABEL), ("tools", _BYTES), ("error", _BYTES))),
    15: (ToolHandle, (("ordinal", _NUMBER), ("handle", _REST))),
}
_MARK: Final = (("step", _one_of(get_args(Step))), ("at_ms", _NUMBER), ("place", _REST_TEXT))
_TAGS: Final = {
    **{kind: (tag, fields) for tag, (kind, fields) in _FORMS.items()},
    Mark: (_ALIVE, _MARK),
}
