"""The vocabulary between the stages: prompt, token chunk, segment events, token usage."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Hashable, Sequence


LOGPROB_MIN = -9999.0
"""Log probability that the API shows for an impossible id."""
PREAMBLE = -1
"""The `Span.source` of the system and developer messages, which no item renders."""


class FinishReason(Enum):
    """Reason of a good end of a turn; any other is an `UpstreamError`.

    Stored logs have the position of a member: a new one comes last.
    """

    STOP = "stop"  # a stop id: <|return|>, <|call|> or <|endoftext|>
    LENGTH = "length"  # max_tokens reached
    CUT = "cut"  # the gateway broke it off, and goes on with another turn of its own
    # Only of turns of text: they cannot be continued, and some servers filter them.
    LOST = "lost"  # the server broke off, and another turn says it all again
    FILTERED = "filtered"  # the server's content filter ended it


@dataclass(frozen=True, slots=True)
class Span:
    """Ids `ids[start:end]` of a prompt, rendered from the context item at index `source`."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids that end with the opening of a turn, packed as unsigned 32-bit integers.

    `text_tokens` is about how many tokens a conversation sent as text has (`gateway.text_ids`).
    `opens_thought`: its server's template begins a thought behind it.
    """

    ids: array[int]
    spans: tuple[Span, ...]
    text_tokens: int | None = None
    opens_thought: bool = False

    @property
    def tokens(self) -> int:
        # The ids of a conversation that is sent as text are no tokens.
        return len(self.ids) if self.text_tokens is None else self.text_tokens


@dataclass(frozen=True, slots=True)
class Framing:
    """The ids around the messages of a turn.

    `opening` ends every prompt. The model ends its last message with `turn_end`; in history that
    message ends with `message_end`. `stores_ids`: items are stored with their ids. Rows do not tell
    the format of ids, so only one (Harmony) may. `is_text`: turns are text (`gateway.text_ids`),
    and cannot be continued. `thought` stands around a thought whose server does not tell it from an
    answer. `marks_answers`: text before a call is not taken for an answer.
    """

    opening: tuple[int, ...]
    turn_end: int
    message_end: int
    stores_ids: bool = True
    is_text: bool = False
    thought: tuple[str, str] | None = None
    marks_answers: bool = True


@dataclass(frozen=True, slots=True)
class Sampling:
    """Explicit sampling parameters; none is ever left to a backend's default."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    """Alternatives to report for each id; None: not even its own logprob."""

    def after(self, generated: int) -> Sampling:
        """Return the sampling for the rest of a turn.

        A backend that continues starts its random numbers again: with the same seed it would repeat
        those of the first ids, so the seed is derived from the number of ids.
        """
        if not generated:
            return self
        seed = self.seed
        if seed is not None:
            digest = hashlib.sha256(b"%d %d" % (seed, generated)).digest()
            seed = int.from_bytes(digest[:8], "big") >> 1
        return replace(self, max_tokens=self.max_tokens - generated, seed=seed)


# Language that a model may write, as a grammar over token ids and text, independent of engines. The
# nodes mirror what engines can express (structural tags of xgrammar 0.2 and later): markers are
# token ids, everything else is text, however it is cut into ids.


@dataclass(frozen=True, slots=True)
class Token:
    id: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, in whichever ids the model spells it."""

    text: str


@dataclass(frozen=True, slots=True)
class AnyText:
    """Any number of ids other than these."""

    excluded: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Json:
    schema: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Ebnf:
    """Text of an EBNF grammar, in GBNF notation; its first rule is `root`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class InOrder:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Choice of at least one option."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    part: Node


@dataclass(frozen=True, slots=True)
class Repeated:
    """Part that comes any number of times, or never."""

    part: Node


Node = Token | Literal | AnyText | Json | Ebnf | InOrder | OneOf | Maybe | Repeated

NOTHING: Final = InOrder(())
"""Only the end can follow."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Required form of the rest of a turn.

    `turn` describes every id before the one that ends the turn. `answer` is the schema of the final
    message, for engines whose grammars begin only there; None where more than that is constrained.
    `calls` is how many different calls it allows: hundreds take long to write for an engine.
    `exact`: it allows nothing but what the request demands. `bare`: no marker comes before the end.
    """

    turn: Node
    answer: dict[str, Any] | None = field(default=None, hash=False)
    calls: int = 0
    exact: bool = True
    bare: bool = False
    markers: tuple[int, ...] = ()
    answer_opening: tuple[int, ...] = ()
    chat: dict[str, Any] | None = field(default=None, hash=False)
    """Fields of a chat endpoint's request, in place of a grammar; `allowed` has names of tools."""
    tags: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """Grammars by engine, kept for later requests."""


@dataclass(slots=True, eq=False)
class Route:
    """Record by which routing places the next turn of a response.

    `placement` is for routing alone to read: at first that of the previous response, from its row.
    `cache_key` is the client's name for requests that begin alike; `opening` counts the ids up to
    the end of the user's first message; 0: unknown.
    """

    placement: bytes | None = None
    cache_key: str | None = None
    opening: int = 0
    turns: int = 0

    def moved(self, placement: bytes) -> None:
        self.placement = placement
        self.turns += 1


@dataclass(frozen=True, slots=True)
class ChatTerms:
    """Terms of a request to a chat endpoint.

    `limits_output`: `max_tokens` is the caller's limit, not an estimate of the rest of the window,
    which the server knows better.
    """

    limits_output: bool
    thought: tuple[str, str] | None = None
    opens_thought: bool = False


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Request for a raw completion of the public `model`.

    `cache_salt` isolates a tenant's prefixes. `tenant` and `share` (times the usual share of the
    backends) order requests that wait. `stop_ids` end the turn: a stream that breaks after one has
    lost nothing. `id_end` is the first number that is no id. `priority`: 0 is ordinary, more goes
    first. `background`: nobody waits for it in person. `has_begun`: it goes on with a response, and
    waits for nobody, unless it `was_recalled` and another took its place. `on_sent` is called with
    the name of each backend.
    """

    request_id: str
    model: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    cache_salt: str
    stop_ids: tuple[int, ...]
    id_end: int
    constraint: Constraint | None = None
    priority: int = 0
    background: bool = False
    has_begun: bool = False
    was_recalled: bool = False
    chat: ChatTerms | None = None
    surplus_ids: int = 0
    route: Route | None = field(default=None, compare=False, repr=False)
    tenant: str = ""
    share: float = 1.0
    on_sent: Callable[[str], None] | None = field(default=None, compare=False, repr=False)

    @property
    def prompt_tokens(self) -> int:
        # An estimate for a conversation that is sent as text.
        return len(self.prompt_ids) - self.surplus_ids


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """Usage of a turn of text, from its server."""

    input_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    cached_tokens: int = 0


# Not frozen, as other values that are made for each token: the guard makes that four times as long.
@dataclass(slots=True, unsafe_hash=True)
class TokenLogprob:
    """Natural log probability of an id, and the likeliest ids in its place, best first.

    Never NaN or infinite: what is impossible is `LOGPROB_MIN`.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class TextLogprob:
    """The `tokens` that begin at a character; empty within a token, None if not reported."""

    tokens: tuple[TextToken, ...] | None = ()


@dataclass(slots=True, unsafe_hash=True)
class TextToken:
    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


IN_TOKEN: Final = TextLogprob()
UNTOLD: Final = TextLogprob(None)

Likelihood: TypeAlias = "TokenLogprob | TextLogprob"


class TokenChunk(Struct, gc=False):
    """Ids of one read from a backend.

    The last one has `finish`, perhaps with `cached_tokens` and `usage`. `constrained`: the backend
    holds the model to the request's constraint. `upstream` is empty if unknown.
    """

    ids: list[int]
    finish: FinishReason | None = None
    cached_tokens: int | None = None
    logprobs: Sequence[Likelihood] | None = None
    constrained: bool = False
    upstream: str = ""
    usage: ReportedUsage | None = None


class TokenSink(Protocol):
    """Receiver of the tokens of a generation.

    `on_tokens` is called in the read of the backend's socket, so it must not block. False: nothing
    more is read until `room` has returned; False from that breaks the generation off. Errors of
    either reach the caller of the generator; an `UpstreamError` would count as the backend's.
    """

    def on_tokens(self, chunk: TokenChunk) -> bool: ...

    async def room(self) -> bool: ...


class SegmentKind(Enum):
    """Kind of a piece of output, which becomes one item."""

    REASONING = "reasoning"  # analysis channel
    COMMENTARY = "commentary"  # a preamble for the user, before or between calls
    FINAL = "final"  # the answer
    FUNCTION_CALL = "function_call"  # commentary (or any channel) to=functions.NAME

    # Kinds that depend on the rules of the request; a parser knows the four above.
    REFUSAL = "refusal"  # instead of an answer in the requested format
    CUSTOM_CALL = "custom_tool_call"
    LOCAL_SHELL_CALL = "local_shell_call"
    SHELL_CALL = "shell_call"
    APPLY_PATCH_CALL = "apply_patch_call"
    TOOL_SEARCH_CALL = "tool_search_call"
    # Calls of tools that the gateway runs, or asks the user about.
    WEB_SEARCH_CALL = "web_search_call"
    CODE_INTERPRETER_CALL = "code_interpreter_call"
    MCP_CALL = "mcp_call"
    MCP_APPROVAL_REQUEST = "mcp_approval_request"

    # Each is a key of several tables, and the hash of an Enum is made in Python, from its name.
    __hash__ = object.__hash__


CALL_KINDS = frozenset(
    {
        SegmentKind.FUNCTION_CALL,
        SegmentKind.CUSTOM_CALL,
        SegmentKind.LOCAL_SHELL_CALL,
        SegmentKind.SHELL_CALL,
        SegmentKind.APPLY_PATCH_CALL,
        SegmentKind.TOOL_SEARCH_CALL,
    }
)
"""Calls that the client runs."""
HOSTED_KINDS = frozenset(
    {SegmentKind.WEB_SEARCH_CALL, SegmentKind.CODE_INTERPRETER_CALL, SegmentKind.MCP_CALL}
)
"""Calls that the gateway runs."""
BUILTIN_PREFIX = "builtin:"
"""Prefix of tools that a model was trained with: no function of a request can have such a name."""
BROWSER_TOOLS = tuple(f"{BUILTIN_PREFIX}browser.{name}" for name in ("search", "open", "find"))
SEARCH_TOOL = BROWSER_TOOLS[0]
PYTHON_TOOL = f"{BUILTIN_PREFIX}python"
"""Its arguments are code, and no JSON."""


@dataclass(frozen=True, slots=True)
class SegmentStarted:
    """Start of a segment; `name` is a call's function.

    `form` is which of several equivalent headers the model wrote
    (`models.harmony.message_headers`).
    """

    kind: SegmentKind
    name: str = ""
    form: int = 0


class SegmentText(Struct, frozen=True, gc=False):
    """More text of the open segment; never empty, half a character, or a marker.

    `tokens` are the positions of its ids: only from a tracing parser, and if text and ids agree
    byte for byte.
    """

    text: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """End of the open segment.

    `start:end` are the ids of its message, header and terminator included, counted from the first
    one fed. `verbatim`: no recovery rule had a part in it, and its header has no more in it than it
    says. The next prompt repeats a message that is this and `complete` id for id. `broken`: a
    call's arguments end within their JSON, although nobody cut them off.
    """

    start: int
    end: int
    complete: bool = True
    verbatim: bool = True
    broken: bool = False


SegmentEvent = SegmentStarted | SegmentText | SegmentEnded


class Where(Enum):
    HEADER = "header"  # a message has begun, its <|message|> has not come
    BODY = "body"
    BETWEEN = "between"  # behind a message
    OVER = "over"  # nothing counts any more


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """A call whose arguments end at position `end`, within their JSON; its `SegmentEnded` is to
    come.
    """

    name: str
    end: int


@dataclass(slots=True, unsafe_hash=True)
class ParserPosition:
    """State of the parser in a turn. Positions count ids from the first one fed.

    `start` is the first id of the open message, or of the next. `kind` and `name` are those of an
    open body, or of the hosted call that ended the turn. `doubts` are the rules that make the open
    message unreadable. `waiting` counts ids whose kind depends on what comes next. Before it, an
    answer (`answered`) or a call (`called`, if more may follow) was closed, or a call broke off
    (`broken`).
    """

    where: Where
    start: int
    kind: SegmentKind | None = None
    name: str = ""
    doubts: tuple[str, ...] = ()
    waiting: int = 0
    answered: bool = False
    broken: BrokenCall | None = None
    called: bool = False


class TokenParser(Protocol):
    """Parser of the ids of one turn into segments. Total: no sequence of ids makes it raise.

    How the ids were cut into calls of `feed` only changes how text is cut into `SegmentText`s.
    """

    recoveries: dict[str, int]

    @property
    def reasoning_tokens(self) -> int: ...

    @property
    def place(self) -> ParserPosition: ...

    def piece(self, token: int) -> bytes:
        """Return the bytes of an id; empty if it is not text."""
        ...

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]: ...

    def feed_each(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each of the first ids, as long as they add only to the open segment;
        empty where `feed` returns nothing.

        Later ids are not read; a parser that traces its text reads none.
        """
        ...

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        """Close the open segment. `reason` is None if the turn was broken off."""
        ...


@dataclass(slots=True)
class TokenUsage:
    """Exact token counts of one response; of turns of text the server's, or `estimated`.

    Nobody pays for `recomputed_tokens` (read again by another backend) and `voided_tokens` (taken
    back). `tool_output_tokens` are results of hosted tools, which later input has, too.
    `tool_calls` counts a repeated call once. Output by channel has headers; ids outside of messages
    are in none.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    recomputed_tokens: int = 0
    voided_tokens: int = 0
    tool_output_tokens: int = 0
    tool_calls: int = 0
    web_searches: int = 0
    analysis_tokens: int = 0
    commentary_tokens: int = 0
    final_tokens: int = 0
    arguments_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """Call that the gateway answered, and the ids of the result's message."""

    name: str
    arguments: str
    result: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RenderedItem:
    """Output item with its ids in the next prompt; without these it, or its `call`, is rendered
    again.

    `includable` are fields that only `include` shows, and its request did not include.
    """

    item: dict[str, object] = field(hash=False)
    ids: tuple[int, ...] | None = None
    call: AnsweredCall | None = None
    includable: dict[str, object] | None = field(default=None, hash=False)
