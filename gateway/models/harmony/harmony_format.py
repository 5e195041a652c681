"""Harmony, the format of gpt-oss, as the rest of the gateway sees it.

Transcripts have the shape of openai-harmony's `Message.to_dict`. Ids that are no well-formed
message are shown in vLLM's shape for raw messages: `{"type": "raw_message_tokens", "message": …,
"tokens": […]}`.

A model goes on as it finds itself to have begun. So a turn behind which another is generated is
rendered again (`rerender`), each message as later prompts render its item: id for id if the
model wrote and closed it as trained, and otherwise its text, tokenised again. A message that was
cut off is text, too: its last id may be half a character.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from gateway.constraints.output_rules import AnswerFormat
from gateway.errors import StartupError
from gateway.generation import (
    BROWSER_TOOLS,
    SEARCH_TOOL,
    Framing,
    SegmentEnded,
    SegmentKind,
    SegmentStarted,
)
from gateway.models.format import (
    RAW,
    TAKEN_BACK_BY,
    Builtins,
    FixedFormat,
    RenderOptions,
    TokenPiece,
)
from gateway.models.harmony.grammar import turn_constraint
from gateway.models.harmony.message_headers import addressed, is_builtin, is_code
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.rendering import HarmonyMessage, Renderer, call_message
from gateway.models.harmony.tokenizer import (
    CALL,
    CALL_PREFIX,
    CHANNEL,
    CONSTRAIN,
    END,
    END_OF_TEXT,
    FINAL,
    FINAL_HEADER,
    FIRST_SPECIAL,
    MESSAGE,
    NAMED_SPECIALS,
    OPENING,
    RECIPIENT_PREFIX,
    RETURN,
    START,
    STOP_IDS,
    VOCABULARY_SIZE,
    Vocabulary,
)
from gateway.models.history import repeated_ids
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import InputText, Message
from gateway.protocol.tool_types import FunctionTool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import Constraint, FinishReason, ParserPosition, Prompt, TokenParser
    from gateway.models.format import FormatOptions, GrammarOptions, TokenPart, Turn


_ROLES: Final = ("system", "developer", "user", "assistant")
_ENDS: Final = frozenset({END, CALL, RETURN})
_MARKERS: Final = {token: marker for marker, token in NAMED_SPECIALS.items()}
_AUTHOR: Final = re.compile(r"(?P<author>[^\s<]+)(?: to=(?P<recipient>[^\s<]+))?")
_CHANNEL: Final = re.compile(
    r"(?P<channel>analysis|commentary|final)(?: to=(?P<recipient>[^\s<]+))?"
    r"(?: ?(?P<type><\|constrain\|>[^\s<]+| [^\s<]+))?"
)


def transcript(
    vocabulary: Vocabulary, ids: Sequence[int], *, with_ids: bool = False
) -> list[dict[str, Any]]:
    """Return the messages of any ids; each id is in one of them.

    An opening without a message behind it is raw.
    """
    return [_message(vocabulary, part, with_ids=with_ids) for part in _parts(ids)]


def raw_message(vocabulary: Vocabulary, ids: Sequence[int]) -> dict[str, Any]:
    return {"type": RAW, "message": spelled(vocabulary, ids), "tokens": list(ids)}


def spelled(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """Return the text of ids, with markers and unknown ids spelled out and U+FFFD for bad UTF-8."""
    pieces = (
        vocabulary.piece(token)
        if token < FIRST_SPECIAL
        else _MARKERS.get(token, f"<|{token}|>").encode()
        for token in ids
    )
    return b"".join(pieces).decode("utf-8", "replace")


def _parts(ids: Sequence[int]) -> Iterator[list[int]]:
    part: list[int] = []
    for token in ids:
        if token == START and part:
            yield part
            part = []
        part.append(token)
        if token in _ENDS:
            yield part
            part = []
    if part:
        yield part


def _message(vocabulary: Vocabulary, part: list[int], *, with_ids: bool) -> dict[str, Any]:
    read = _well_formed(vocabulary, part)
    if read is None:
        return raw_message(vocabulary, part)
    return {**read, "token_ids": part} if with_ids else read


def _well_formed(vocabulary: Vocabulary, part: list[int]) -> dict[str, Any] | None:
    # None where the message is not well-formed. The last one may lack its end.
    if part[0] != START or MESSAGE not in part:
        return None
    at = part.index(MESSAGE)
    head, body = part[1:at], part[at + 1 :]
    if body and body[-1] in _ENDS:
        body = body[:-1]
    if any(token >= FIRST_SPECIAL for token in body):
        return None
    header = _header(vocabulary, head)
    if header is None:
        return None
    text = vocabulary.decode(body)
    return {**header, "content": [{"type": "text", "text": text}]}


def _header(vocabulary: Vocabulary, head: list[int]) -> dict[str, Any] | None:
    if any(token >= FIRST_SPECIAL and token not in {CHANNEL, CONSTRAIN} for token in head):
        return None
    front, marked, channel = spelled(vocabulary, head).partition(_MARKERS[CHANNEL])
    author = _AUTHOR.fullmatch(front)
    if author is None:
        return None
    name = author["author"]
    fields: dict[str, Any] = {"role": name} if name in _ROLES else {"role": "tool", "name": name}
    recipient = author["recipient"]
    if marked:
        read = _CHANNEL.fullmatch(channel.rstrip(" "))
        if read is None or (recipient and read["recipient"]):
            return None
        recipient = recipient or read["recipient"]
        fields["channel"] = read["channel"]
        if kind := read["type"]:
            fields["content_type"] = kind.strip()
    if recipient:
        fields["recipient"] = recipient
    return fields


_SPACE = 220
_JSON = 4108
_BRACE = 90
_BROWSER: Final = frozenset(BROWSER_TOOLS)
_JSON_CONTENT = (_SPACE, CONSTRAIN, _JSON, MESSAGE)
PLAIN_HEADER_IDS_MAX: Final = 5
"""Ids of a header that names a channel and no recipient."""
_ENDINGS: Final = frozenset({*STOP_IDS, END, START})
_CHANNEL_NAMES: Final = {
    SegmentKind.REASONING: "analysis",
    SegmentKind.COMMENTARY: "commentary",
    SegmentKind.FINAL: "final",
}


def turn_ids(turns: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[int]:
    """Return the ids of turns (prefill, output) as `ModelFormat.turn_ids` does.

    A turn without more than its end is left out. (`rerender` returns the same of closed messages.)
    """
    ids: list[int] = []
    for prefill, output in turns[:-1]:
        if spoken := _without_ending(output):
            ids += (*prefill, *spoken, END, *OPENING)
    for prefill, output in turns[-1:]:
        ids += (*prefill, *output)
    return ids


def _without_ending(output: Sequence[int]) -> Sequence[int]:
    size = len(output)
    while size and output[size - 1] in _ENDINGS:
        size -= 1
    return output[:size]


def _tool_header(name: str, vocabulary: Vocabulary) -> tuple[int, ...]:
    channel, recipient = addressed(name)
    front = (*vocabulary.encode(f" to={recipient}"), CHANNEL, *vocabulary.encode(channel))
    return (*front, *((*vocabulary.encode(" code"), MESSAGE) if is_code(name) else _JSON_CONTENT))


def answer_header(rules: OutputRules, *, attempt: int) -> tuple[int, ...]:
    """Return the ids that open the answer; from the second attempt on with the brace of an
    object.
    """
    if rules.answer is None:
        return FINAL_HEADER
    header = (CHANNEL, FINAL, *_JSON_CONTENT)
    if attempt and rules.answer.demand.get("type") == "object":
        return (*header, _BRACE)
    return header


def plain_header(ids: Sequence[int], at: int) -> int:
    header = ids[at : at + PLAIN_HEADER_IDS_MAX]
    if header[0] != CHANNEL or MESSAGE not in header:
        return 0
    end = header.index(MESSAGE)
    return end + 1 if max(header[1:end], default=0) < FIRST_SPECIAL else 0


@dataclass(frozen=True, slots=True)
class _WrittenMessage:
    begun: SegmentStarted
    ended: SegmentEnded
    text: str

    @property
    def is_call(self) -> bool:
        return self.begun.kind is SegmentKind.FUNCTION_CALL


def with_result(ids: Sequence[int], result: Sequence[int]) -> Sequence[int]:
    """Insert a result into ids that end with a call and the opening of another message.

    A long prompt stays packed: a number for each of its ids would take the loop milliseconds.
    """
    call = ids[: len(ids) - len(OPENING)]
    behind = (*result, *OPENING)
    return call + array("I", behind) if isinstance(call, array) else [*call, *behind]


def _written_messages(
    parser: TokenParser, ids: Sequence[int], finish: FinishReason | None
) -> Iterator[_WrittenMessage]:
    begun = SegmentStarted(SegmentKind.REASONING)
    texts: list[str] = []
    for event in (*parser.feed(ids), *parser.finish(finish)):
        if isinstance(event, SegmentStarted):
            begun, texts = event, []
        elif isinstance(event, SegmentEnded):
            yield _WrittenMessage(begun, event, "".join(texts))
        else:
            texts.append(event.text)


SAMPLE_ITEM: Final = ContextItem(
    "message",
    "msg_1",
    b"{}",
    role="user",
    parsed=Message(role="user", content=(InputText(text="Say hello in 日本語, naïvely 🙂."),)),
)
SAMPLE_OPTIONS: Final = RenderOptions(
    instructions="Be brief.",
    tools=(
        FunctionTool(
            name="get_weather",
            description="Current weather.",
            parameters={"type": "object", "properties": {"city": {"type": "string"}}},
        ),
    ),
    effort="low",
    current_date="2026-01-31",
    model_identity="You are ChatGPT, a large language model trained by OpenAI.",
    knowledge_cutoff="2024-06",
    commentary_without_tools=False,
    answer=AnswerFormat("json_schema", {"type": "object"}, name="greeting", description="One."),
    builtins=Builtins(browser=True, python=True),
)
SAMPLE_SHA256: Final = "14487410ea51346e8fff584386d6509c18c82f7480b555a6510904cfe2e607e9"
"""Digest of the ids that openai-harmony 0.0.8 makes of the sample; the tests compute it anew."""
_NO_TOOLS: Final[frozenset[str]] = frozenset()
"""An empty set has 200 bytes, and nearly every response would have one."""


_BEHIND: Final[Mapping[int, TokenPart]] = {
    START: "role",
    CHANNEL: "channel",
    CONSTRAIN: "content_type",
    MESSAGE: "body",
    **dict.fromkeys((END, RETURN, CALL, END_OF_TEXT), "between"),
}
_DROPPED_IN_BODY: Final = frozenset({CONSTRAIN, MESSAGE})
_ADDRESSED: Final = frozenset({"role", "channel"})
"""A recipient may follow in these."""


class HarmonyFormat(Renderer, FixedFormat):
    name: Final = "harmony"
    abilities: Final = ("reasoning", "tools", "structured_outputs", "streaming", "background")
    template_state: Final = b""
    questions: Final[tuple[bytes, ...]] = ()
    vocabulary_size: Final = VOCABULARY_SIZE
    text_ids: Final = range(FIRST_SPECIAL)
    stop_ids: Final = STOP_IDS
    framing: Final = Framing(opening=OPENING, turn_end=RETURN, message_end=END)
    framing_tokens: Final = 12
    """`<|channel|>analysis<|message|>`, `<|end|><|start|>assistant`, and the header of an answer in
    JSON."""
    header_markers: Final = frozenset({CHANNEL, CONSTRAIN, MESSAGE})
    has_text_headers: Final = False
    plain_header_ids_max: Final = PLAIN_HEADER_IDS_MAX
    plain_header = staticmethod(plain_header)
    turn_ids = staticmethod(turn_ids)
    answer_opening = staticmethod(answer_header)
    with_result = staticmethod(with_result)
    repeated_ids = staticmethod(repeated_ids)

    @classmethod
    def load(cls, options: FormatOptions | None = None) -> HarmonyFormat:  # noqa: ARG003 - one family has none
        return cls(Vocabulary.load())

    def check(self) -> None:
        """Raise `StartupError` if openai-harmony's ids of the sample are others.

        A wrong prompt does not fail, the model just gets worse.
        """
        ids = self.render([SAMPLE_ITEM], SAMPLE_OPTIONS).ids
        if sha256(ids).hexdigest() != SAMPLE_SHA256:
            raise StartupError(
                "prompts differ from openai-harmony's",
                remedy="Reinstall the package with the versions in its requirements.lock.",
            )

    def messages(self, prompt: Prompt, *, with_ids: bool) -> list[dict[str, Any]]:
        # The last message of a prompt is an opening, and left out.
        return transcript(self.vocabulary, prompt.ids[: -len(OPENING)], with_ids=with_ids)

    def messages_of_turn(
        self,
        ids: Sequence[int],
        taken_back: Sequence[tuple[str, Sequence[int]]] = (),
        *,
        with_ids: bool = False,
    ) -> list[dict[str, Any]]:
        shown = transcript(self.vocabulary, (*OPENING, *ids), with_ids=with_ids)
        return shown + [
            {**raw_message(self.vocabulary, voided), TAKEN_BACK_BY: rule}
            for rule, voided in taken_back
        ]

    def anatomy(self, ids: Iterable[int], part: TokenPart = "role") -> list[TokenPiece]:
        pieces, token_pieces = self.vocabulary.pieces, []
        for token in ids:
            if token >= FIRST_SPECIAL:
                if part != "body" or token not in _DROPPED_IN_BODY:
                    part = _BEHIND.get(token, part)
                name = _MARKERS.get(token) or f"<|reserved_{token}|>"
                token_pieces.append(TokenPiece(name.encode(), "marker", part))
                continue
            if token == RECIPIENT_PREFIX[0] and part in _ADDRESSED:
                part = "recipient"
            token_pieces.append(TokenPiece(pieces[token], part, part))
        return token_pieces

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> Parser:
        # If the answer has a format, preambles are reasoning.
        tools = None if rules.calls == "none" else frozenset(rules.tools) or _NO_TOOLS
        preambles, hosted = rules.answer is None, rules.hosted or _NO_TOOLS
        return Parser(self.vocabulary, tools, trace=trace, preambles=preambles, hosted=hosted)

    def rerender(self, turns: Iterable[Turn], new_parser: Callable[[], TokenParser]) -> list[int]:
        rerendered: list[int] = []
        for ids, finish in turns:
            for message in _written_messages(new_parser(), ids, finish):
                # A call that was cut off cannot have an output.
                if not message.is_call or (message.ended.complete and not message.ended.broken):
                    rerendered += (*self._written_ids(message, ids), *OPENING)
        return rerendered

    def _written_ids(self, message: _WrittenMessage, ids: Sequence[int]) -> Sequence[int]:
        begun, ended = message.begun, message.ended
        if ended.verbatim and ended.complete:
            message_ids = ids[ended.start : ended.end]
            begin = len(OPENING) if message_ids[0] == START else 0
            return (*message_ids[begin:-1], CALL if message.is_call else END)
        if message.is_call:
            written = call_message(begun.name, message.text)
        else:
            written = HarmonyMessage("assistant", message.text, _CHANNEL_NAMES[begun.kind])
        return self.message_ids(written, form=begun.form)[len(OPENING) :]

    def call_opening(self, rules: OutputRules) -> tuple[int, ...]:
        """Return the ids that open the required call.

        They are its whole header for an only tool, or for the browser, which has to search first;
        otherwise the ids before the name, or before the namespace if there are several.
        """
        allowed = rules.allowed
        if allowed == _BROWSER:
            return _tool_header(SEARCH_TOOL, self.vocabulary)
        if len(allowed) == 1:
            [name] = allowed
            return _tool_header(name, self.vocabulary)
        return RECIPIENT_PREFIX if any(map(is_builtin, allowed)) else CALL_PREFIX

    def message_opening(self) -> tuple[int, ...]:
        # Behind this marker the model has to name a channel.
        return (CHANNEL,)

    def has_body(self, message: Sequence[int]) -> bool:
        return MESSAGE in message

    def turn_constraint(
        self,
        rules: OutputRules,
        place: ParserPosition,
        message: Sequence[int],
        options: GrammarOptions,
    ) -> Constraint | None:
        return turn_constraint(rules, place, message, options, self.vocabulary)
