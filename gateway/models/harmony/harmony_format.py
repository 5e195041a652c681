"""Harmony, the format of gpt-oss, as the rest of the gateway sees it.

`transcript` shows token ids as Harmony messages in the shape of openai-harmony's `Message.to_dict`,
their text as the model reads it: what stands before the instructions of a developer message is part
of it. Ids that are no well-formed message (a header that says too little or too much, a marker
where none may stand, text behind the end of a message) are shown as they are, in the shape that
vLLM has for raw messages: `{"type": "raw_message_tokens", "message": …, "tokens": […]}`, with the
markers spelled out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from gateway.generation import Framing
from gateway.models.format import FixedFormat
from gateway.models.harmony import framing as frames
from gateway.models.harmony.grammar import turn_constraint
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.rendering import Renderer
from gateway.models.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FIRST_SPECIAL,
    MESSAGE,
    NAMED_SPECIALS,
    OPENING,
    RETURN,
    START,
    STOP_IDS,
    VOCABULARY_SIZE,
    Vocabulary,
)
from gateway.models.history import repeated_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.generation import Constraint, ParserPosition, Prompt, TokenParser
    from gateway.models.format import FormatOptions, GrammarOptions, SchemaLimits, Turn


RAW: Final = "raw_message_tokens"
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
    """Return the messages of a prompt or of a turn in their order; each id is in one of them.

    The opening of a turn that a prompt ends with (`<|start|>assistant`) belongs to the turn:
    alone it is raw. `with_ids` adds `token_ids`, the ids of the whole message, to each. Takes
    any ids, and raises nothing.
    """
    return [_message(vocabulary, part, with_ids=with_ids) for part in _parts(ids)]


def messages_of_turn(
    vocabulary: Vocabulary,
    ids: Sequence[int],
    taken_back: Sequence[tuple[str, Sequence[int]]] = (),
    *,
    with_ids: bool = False,
) -> list[dict[str, Any]]:
    """Return the messages behind the opening of a turn, prefill included, then those taken back.

    `taken_back` pairs the rule that did it with the ids. Those are raw, and `taken_back_by` names
    the rule.
    """
    shown = transcript(vocabulary, (*OPENING, *ids), with_ids=with_ids)
    return shown + [
        {**raw_message(vocabulary, voided), "taken_back_by": rule} for rule, voided in taken_back
    ]


def raw_message(vocabulary: Vocabulary, ids: Sequence[int]) -> dict[str, Any]:
    """Return ids in vLLM's shape for raw messages, with no header or body read."""
    return {"type": RAW, "message": spelled(vocabulary, ids), "tokens": list(ids)}


def spelled(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """Return the text of ids, with markers and unknown ids spelled out.

    Bytes that are not UTF-8 become U+FFFD.
    """
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


_NO_TOOLS: Final[frozenset[str]] = frozenset()
"""An empty set has 200 bytes, and nearly every response would have one."""


class HarmonyFormat(Renderer, FixedFormat):
    """A `ModelFormat`: a renderer of prompts, and what else there is to know of Harmony."""

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
    plain_header_ids_max: Final = frames.PLAIN_HEADER_IDS_MAX
    plain_header = staticmethod(frames.plain_header)
    said_ids = staticmethod(frames.said_ids)
    answer_opening = staticmethod(frames.answer_header)
    with_result = staticmethod(frames.with_result)
    repeated_ids = staticmethod(repeated_ids)

    @classmethod
    def load(cls, limits: SchemaLimits, options: FormatOptions | None = None) -> HarmonyFormat:  # noqa: ARG003 - one family has none
        # Raises `StartupError` when the vocabulary is damaged.
        return cls(Vocabulary.load(), limits)

    def check(self) -> None:
        """Render a prompt as openai-harmony does, whose 20 MiB nothing that serves has to load."""
        from gateway.models.harmony.harmony_reference import check_prompt

        check_prompt(self)

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
        """Return the messages of a turn's `ids` (`transcript`), then those `taken_back`.

        `taken_back` pairs the rule that took ids back with those ids. `with_ids` adds `token_ids`.
        """
        return messages_of_turn(self.vocabulary, ids, taken_back, with_ids=with_ids)

    def new_parser(self, rules: OutputRules, *, trace: bool = False) -> Parser:
        """Return a parser for one turn of a response that is held to `rules`.

        It knows their tools, and beside an answer in a format preambles are reasoning. With
        `trace` text has positions.
        """
        tools = None if rules.calls == "none" else frozenset(rules.tools) or _NO_TOOLS
        preambles, hosted = rules.answer is None, rules.hosted or _NO_TOOLS
        return Parser(self.vocabulary, tools, trace=trace, preambles=preambles, hosted=hosted)

    def rerender(self, turns: Iterable[Turn], new_parser: Callable[[], TokenParser]) -> list[int]:
        # Each turn is read by a parser of its own; calls that were cut off are left out.
        return frames.rerendered_ids(turns, new_parser, self._writer)

    def call_opening(self, rules: OutputRules) -> tuple[int, ...]:
        return frames.call_header(rules, self.vocabulary)

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
        # None when nothing is bound, or can be. CPU work.
        return turn_constraint(rules, place, message, options, self.vocabulary)
