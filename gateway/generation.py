"""The vocabulary between the stages: prompt, token chunk, segment events, token usage.

`models`, `upstreams`, `eventlog` and `engine` speak it to each other without knowing each other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Hashable, Sequence


LOGPROB_MIN = -9999.0
"""Log probability of something impossible, as the API shows it."""
PREAMBLE = -1
"""The `Span.source` of what is rendered from no item: the system and developer messages."""


class FinishReason(Enum):
    """Reason of a good end of a turn. Every other end is an `UpstreamError`.

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
    """Ids of a prompt, `ids[start:end]`, rendered from the context item at index `source`."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids that a backend continues; they end with the opening of a turn.

    There may be hundreds of thousands of ids: they are packed, as unsigned 32-bit integers. Those
    of a conversation that is sent as it is (`gateway.text_ids`) are no tokens: `text_tokens` is
    about how many it has. None: each id is a token. `opens_thought`: the template of its server
    begins a thought behind it, so the answer begins within one.
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
    """The ids around the messages of a turn, as the next prompt needs them.

    `opening` ends every prompt, so the first message of a turn comes without it. `turn_end` is
    what the model ends its last message with; in history that message ends with `message_end`.
    `stores_ids`: items are stored with the ids that stand for them. Rows do not tell of which
    format these are, so only one format may (Harmony); items of another are rendered anew.
    `is_text`: turns are text of a server's chat endpoint (`gateway.text_ids`): nobody can go on
    with one that was begun. `thought` is what such a thought stands between whose server does not
    tell it from an answer.
    """

    opening: tuple[int, ...]
    turn_end: int
    message_end: int
    stores_ids: bool = True
    is_text: bool = False
    thought: tuple[str, str] | None = None


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
    """Number of alternatives to report for each id; None: not even the id's own logprob."""

    def after(self, generated: int) -> Sampling:
        """Return the sampling for the rest of a turn, after `generated` ids.

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
    """Single id, such as a marker."""

    id: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A text, exactly, in whichever ids the model spells it."""

    text: str


@dataclass(frozen=True, slots=True)
class AnyText:
    """Any ids but these, any number of them."""

    excluded: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON value that the schema describes."""

    schema: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Ebnf:
    """Text that an EBNF grammar describes, in GBNF notation; its first rule is `root`."""

    grammar: str


@dataclass(frozen=True, slots=True)
class InOrder:
    """Sequence of parts, one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Choice of one of these parts; there is at least one."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    """A part, once or not at all."""

    part: Node


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part, any number of times, also never."""

    part: Node


Node = Token | Literal | AnyText | Json | Ebnf | InOrder | OneOf | Maybe | Repeated

NOTHING: Final = InOrder(())
"""Only the end can follow."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Required form of the rest of a turn.

    `turn` describes every id to come, up to the one that ends the turn, which is not part of it.
    `answer` is the schema of the final message alone, for engines whose grammars begin only there;
    None where there is none, or where more than the answer is constrained. `calls` is how many
    different calls it allows: with hundreds of them it takes long to write for an engine. `exact`:
    it allows nothing but what the request demands. `bare`: no marker is to come before the end.
    `markers` are the ids that frame messages; a final message begins with `answer_opening`.
    """

    turn: Node
    answer: dict[str, Any] | None = field(default=None, hash=False)
    calls: int = 0
    exact: bool = True
    bare: bool = False
    markers: tuple[int, ...] = ()
    answer_opening: tuple[int, ...] = ()
    chat: dict[str, Any] | None = field(default=None, hash=False)
    """Constraint for a server's chat endpoint, in place of a grammar: fields of its request, and
    under `allowed` the names of the tools that may be called."""
    tags: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """Grammars that engines were sent for it, by engine, kept for later requests that it binds."""


@dataclass(slots=True, eq=False)
class Route:
    """Placement of a response so far, by which routing chooses a backend for its next turn.

    `placement` is routing's record of the last turn, in bytes that only routing reads: that of a
    response before, as its row has it, until a turn of this one has ended. `cache_key` is the name
    that the client gave requests that begin alike; `opening` is how many ids the prompt has up to
    the end of the user's first message (0: not known).
    """

    placement: bytes | None = None
    cache_key: str | None = None
    opening: int = 0
    turns: int = 0
    """Number of turns of this response that were placed."""

    def moved(self, placement: bytes) -> None:
        # A turn of the response ended at `placement`.
        self.placement = placement
        self.turns += 1


@dataclass(frozen=True, slots=True)
class ChatTerms:
    """Terms of a request to a chat endpoint: its prompt is a conversation, and its answer text.

    `limits_output`: `max_tokens` is the caller's limit. Otherwise it is only an estimate of the
    rest of the window, and the server knows better. `thought` is that of
    `Framing`, `opens_thought` that of `Prompt`.
    """

    limits_output: bool
    thought: tuple[str, str] | None = None
    opens_thought: bool = False


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Request for a raw completion: `model` is the public name, `cache_salt` isolates a tenant's
    prefixes. `tenant` names whose it is where requests wait for each other, and `share` how many
    times the usual share of the backends that tenant has; no backend is told.

    `stop_ids` end the turn: a stream that breaks after one of them has lost nothing. `id_end` is
    the first number that is no id of the model's vocabulary. `constraint` is what the ids to come
    must look like, from the first one on. `priority` is 0 for ordinary work, more for what is to go
    before it, less for what can wait. `background`: nobody waits for it in person. `has_begun`: it
    goes on with a response of which some is there, and waits for nobody, unless it `was_recalled`:
    then another had its place, and it waits for one as others do. `chat` is None where ids go in
    and come out. `surplus_ids` is how many ids more than tokens the prompt of a chat has, which
    stays the same as text is put behind it (`gateway.text_ids.surplus_ids`). `on_sent` is called
    with the name of each backend that the request is sent to.
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
    """Token counts of a turn of text, as its server reported them."""

    input_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    cached_tokens: int = 0


# Not frozen, as other values that are made for each token: the guard makes that four times as long.
@dataclass(slots=True, unsafe_hash=True)
class TokenLogprob:
    """Log probability of an id (natural logarithm), and the likeliest ids in its place, best first.

    Never NaN or infinite: what a backend calls impossible is `LOGPROB_MIN`.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class TextLogprob:
    """Log probabilities of a character of a text: the `tokens` that begin there, as its server
    reported them; none where it is in the middle of a token. None: they are not known.
    """

    tokens: tuple[TextToken, ...] | None = ()


@dataclass(slots=True, unsafe_hash=True)
class TextToken:
    """A token of such a text: its bytes, its log probability, and the likeliest in its place."""

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


IN_TOKEN: Final = TextLogprob()
UNTOLD: Final = TextLogprob(None)

Likelihood: TypeAlias = "TokenLogprob | TextLogprob"
"""Log probabilities that a server reported for one id."""


@dataclass(slots=True, unsafe_hash=True)
class TokenChunk:
    """Ids of one read from a backend, any number of them; the last chunk has the finish reason.

    `logprobs` has one for each id if the request includes them, otherwise it is None.
    `cached_tokens` may come with the finish. `constrained`: the backend holds the model to the
    request's constraint. `upstream` names the backend; empty: unknown. `usage` may
    come with the finish of a turn of text.
    """

    ids: list[int]
    finish: FinishReason | None = None
    cached_tokens: int | None = None
    logprobs: Sequence[Likelihood] | None = None
    constrained: bool = False
    upstream: str = field(default="", compare=False)
    usage: ReportedUsage | None = None


class TokenSink(Protocol):
    """Receiver of the tokens of a generation as they come.

    `on_tokens` is called in the read of the backend's socket that brought the ids, so it must not
    block. False: nothing more is read until `room` has returned. `room` waits until the sink can
    take more, and returns False if it has enough: then the generation is broken off. What either
    raises ends the generation, too, and reaches the caller of the generator; it must not be an
    `UpstreamError`, which would count as the backend's.
    """

    def on_tokens(self, chunk: TokenChunk) -> bool: ...

    async def room(self) -> bool: ...


class SegmentKind(Enum):
    """Kind of a contiguous piece of output; each piece becomes one item."""

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
"""The kinds that a client executes."""
HOSTED_KINDS = frozenset(
    {SegmentKind.WEB_SEARCH_CALL, SegmentKind.CODE_INTERPRETER_CALL, SegmentKind.MCP_CALL}
)
"""The kinds that the gateway runs itself."""
BUILTIN_PREFIX = "builtin:"
"""Begins the names by which rules and logs know the tools that a model was trained with, as in
`builtin:browser.search`: no function of a request can have such a name."""
BROWSER_TOOLS = tuple(f"{BUILTIN_PREFIX}browser.{name}" for name in ("search", "open", "find"))
"""Names of the tools of web search."""
SEARCH_TOOL = BROWSER_TOOLS[0]
PYTHON_TOOL = f"{BUILTIN_PREFIX}python"
"""Name of the code interpreter, which takes code, and no JSON."""


@dataclass(frozen=True, slots=True)
class SegmentStarted:
    """Start of a segment. `name` is the function's name for a call, otherwise empty.

    `form` tells which of several equivalent headers the model wrote, for a call or a message
    (`models.harmony.message_headers`); 0 for the one that is written where nobody knows.
    """

    kind: SegmentKind
    name: str = ""
    form: int = 0


@dataclass(slots=True, unsafe_hash=True)
class SegmentText:
    """More text of the open segment; never empty, never half a character, never a marker.

    `tokens` are the positions of the ids that spell it, counted as in `SegmentEnded`; only a
    tracing parser has them, and only if text and ids agree byte for byte.
    """

    text: str
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """End of the open segment.

    `start:end` are the ids of its whole message, header and terminator included, counted from the
    first id fed to this parser. `verbatim` is False when a recovery rule had a part in it, or its
    header has more in it than it says. `complete` is False for a message that was cut off. The next
    prompt repeats a message that is both id for id; any other is rendered again. `broken`: the
    arguments of a call end in the middle of their JSON, although nobody cut them off.
    """

    start: int
    end: int
    complete: bool = True
    verbatim: bool = True
    broken: bool = False


SegmentEvent = SegmentStarted | SegmentText | SegmentEnded


class Where(Enum):
    """Place of the next id in a turn."""

    HEADER = "header"  # a message has begun, its <|message|> has not come
    BODY = "body"
    BETWEEN = "between"  # behind a message
    OVER = "over"  # nothing counts any more


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """A call of the function `name` whose arguments end at position `end`, in the middle of their
    JSON. Its end was not told yet.
    """

    name: str
    end: int


@dataclass(slots=True, unsafe_hash=True)
class ParserPosition:
    """State of the parser in a turn. Positions count ids from the first one fed to the parser.

    `start` is the first id of the open message; between messages, of the one to come. `kind` and
    `name` are those of an open body, None and empty elsewhere and while the kind is not known; of a
    turn that a call of a hosted tool has ended, they are those of the call.
    `doubts` are the rules that make the open message unreadable. `waiting` counts the ids of
    texts that become reasoning or something else, as whatever comes next will tell. `answered`: an
    answer was closed before it. `broken` is the call before it, if that broke off. `called`: a call
    was closed before it, in a format in which more may follow.
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

    The result does not depend on how the ids were cut into calls of `feed`, except that text may
    be cut into more or fewer `SegmentText`s.
    """

    recoveries: dict[str, int]
    """Number of times that each recovery rule fired, by name."""

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of ids in the bodies of reasoning segments so far."""
        ...

    @property
    def place(self) -> ParserPosition:
        """Return where the next id falls."""
        ...

    def piece(self, token: int) -> bytes:
        """Return the bytes that an id stands for; empty if it is not text."""
        ...

    def feed(self, ids: Sequence[int]) -> list[SegmentEvent]: ...

    def feed_each(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each of the first ids, as long as they add only to the open segment.

        The list has an empty string for an id for which `feed` would return none. The ids after
        those are not read; a parser that traces its text reads none.
        """
        ...

    def finish(self, reason: FinishReason | None) -> list[SegmentEvent]:
        """End the turn and close the open segment. `reason` is None if the turn was broken off."""
        ...


@dataclass(slots=True)
class TokenUsage:
    """Token counts of one response, exact because they are counted from ids. Those of turns of text
    are the server's, or `estimated` if it did not report them.

    `recomputed_tokens` were read again by another backend that went on, `voided_tokens` were
    generated and taken back; nobody pays for either. `tool_output_tokens` are the results of tools
    that the gateway ran: the input of the turns behind them has them, too. `tool_calls` are how
    many of these it answered, `web_searches` those that searched the web; one that was run again
    is one. Output is also counted by channel, messages with their headers: analysis, commentary,
    final answers, and calls with their arguments. Ids outside of messages are in none of these.
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
    """A call that the gateway answered: of which tool, by the name that rules have for it, with
    which arguments, and the ids of the message that is the result.
    """

    name: str
    arguments: str
    result: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RenderedItem:
    """An output item with the ids that stand for it in the next prompt (None: render it again).

    `call` has what an item without ids cannot show: the call as the model knows it. `includable`
    are fields that only `include` shows, and its request did not include.
    """

    item: dict[str, object] = field(hash=False)
    ids: tuple[int, ...] | None = None
    call: AnsweredCall | None = None
    includable: dict[str, object] | None = field(default=None, hash=False)
