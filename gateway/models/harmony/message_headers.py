"""Headers of messages, between `<|start|>` and `<|message|>`, and where each sends its message.

The trained forms of an assistant's header are

    assistant<|channel|>analysis
    assistant<|channel|>commentary to=functions.NAME <|constrain|>json
    assistant to=functions.NAME<|channel|>commentary json

with `<|constrain|>json`, the word `json` or nothing as the content type. Calls of built-in tools go
to `browser.search` or `python`, on the analysis channel, and may have the content type `code`, too.
Other headers are read by these rules:

* The channel is a known word at the front of what follows `<|channel|>`; the first one counts.
* Recipients are all `to=NAME`, also with the name in quotes or brackets, and before `functions.`
  also with a colon. The first that names a declared tool counts, else the first that is not
  `assistant`. It decides what the message is, whatever its channel.
* Anything else is leftover prose. Where it names a function of the client, or there is only one and
  no recipient, the message is a call of it if it is a JSON object and `<|call|>` closes it. The
  object need not fit the schema: a wrong call is answered by its client, or generated again
  (strict), while arguments in a message would be the end.

A *trapped* header has no `<|message|>` behind it, and ends with the body itself: only the front of
a part is read as header, the remainder is the body, letter for letter.

The *forms* of a header mean the same; the ids of an item note the number of its form
(`gateway.ids`), but for hosted calls. Form 0 is openai-harmony's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.generation import BUILTIN_PREFIX, PYTHON_TOOL, SegmentKind
from gateway.models.harmony.call_arguments import is_object
from gateway.models.harmony.recovery import Rule
from gateway.models.harmony.tokenizer import CHANNEL, CONSTRAIN, START
from gateway.protocol.tool_types import FUNCTION_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    ContentType = tuple[str, tuple["Part", ...]]

BUILTIN_CHANNEL: Final = "analysis"
"""Calls of these tools, and their results, were trained on it."""


def is_builtin(name: str) -> bool:
    return name.startswith(BUILTIN_PREFIX)


def is_code(name: str) -> bool:
    return name == PYTHON_TOOL


ASSISTANT: Final = "assistant"
NO_MARKER: Final = -1
"""Marker of a header's first text when the model did not write its role."""
NAMESPACE: Final = "functions."
HEADERS_KEPT: Final = 128
"""A model writes a few headers over and over."""
_BUILTIN_CHANNELS: Final = frozenset({BUILTIN_CHANNEL, "commentary"})
_ROLES: Final = frozenset({ASSISTANT, "user", "system", "developer", "tool"})
_BUILTINS: Final = frozenset({"python", "browser", "container"})
_KINDS: Final = {
    "analysis": SegmentKind.REASONING,
    "commentary": SegmentKind.COMMENTARY,
    "final": SegmentKind.FINAL,
}
_WORD = "(?:analysis|commentary|final)"
_CLOSING = r"\"'`\u00b4\u2018-\u201f\u00ab\u00bb\u2039\u203a>)\]*\\"
_QUOTING = rf"[{_CLOSING}<(\[]"
_SIGN = rf"(?:=|\s?[=:](?=\s*{_QUOTING}*functions\.))"
_RECIPIENT = (
    rf"to{_SIGN}\s*(?:(?P<space>functions\.)?{_QUOTING}+\s*(?P<quoted>[A-Za-z0-9_.-]+)"
    rf"[{_CLOSING}]*|(?P<plain>[A-Za-z0-9_.-]*))"
)
_CONTENT_TYPE = r"(?P<type>json|code)(?=\s*(?:\Z|to=|[{\[]))"
_CHANNEL_FIRST = re.compile(rf"\s*({_WORD})")
_CHANNEL_IN_ANY_CASE = re.compile(_CHANNEL_FIRST.pattern, re.IGNORECASE)
_GLUED_CHANNEL = re.compile(f"({_WORD})")
_ROLE_AGAIN = re.compile(rf"\s*{ASSISTANT}(?=\s*(?:\Z|to=|{_WORD}))")
_FIRST_WORD = re.compile(r"\s*(\S*)")
_RECIPIENT_ANYWHERE = re.compile(rf"(?<!\w){_RECIPIENT}")
_CONTENT_TYPE_ANYWHERE = re.compile(rf"(?<!\S){_CONTENT_TYPE}")
_ELEMENT_FIRST = re.compile(rf"\s*(?:{_RECIPIENT}|{_CONTENT_TYPE})")
_CONSTRAINED = re.compile(r"\s*(?:(json|code)(?!\w)|(\w+)\s*\Z)")
_WORDS = re.compile(r"[A-Za-z0-9_.-]+")
_ONLY_CHANNELS = re.compile(rf"(?:[\W_]*{_WORD})+[\W_]*")
_SPOKEN_ROLE = re.compile(rf"\s*{ASSISTANT}(?=\W|{_WORD}|\Z)")
_SPOKEN_RECIPIENT = re.compile(rf"\s*(?:{ASSISTANT}\s*)?(?=to=|\Z)")
_SPOKEN_CHANNEL = re.compile(
    rf"\s*(?:{ASSISTANT}\s*)?({_WORD}\b.*)|.*?\b({_WORD}\b.*?\bto=.*)", re.DOTALL
)


class Part(NamedTuple):
    """Text and the id before it: START, CHANNEL, CONSTRAIN or NO_MARKER."""

    marker: int
    text: str


CALL_CHANNEL: Final = "commentary"
"""Calls were trained on it."""
_JSON: Final = (Part(CONSTRAIN, "json"),)
_SPACED: Final[ContentType] = (" ", _JSON)
_PLAIN: Final[ContentType] = (" json", ())
_NONE: Final[ContentType] = ("", ())
_GLUED: Final[ContentType] = ("", _JSON)
_TYPES_OF_CALLS: Final[tuple[ContentType, ...]] = (_SPACED, _PLAIN, _NONE, _GLUED)
_CODE: Final = (Part(CONSTRAIN, "code"),)
_CODES: Final[tuple[ContentType, ...]] = ((" code", ()), (" ", _CODE), ("", _CODE))
_TYPES_OF_BUILTINS: Final[tuple[ContentType, ...]] = (*_TYPES_OF_CALLS, *_CODES)
_TYPES_OF_MESSAGES: Final[tuple[ContentType, ...]] = (_NONE, _SPACED, _PLAIN, _GLUED)


@dataclass(frozen=True, slots=True)
class Header:
    """Contents of a header; an unknown channel is empty."""

    role: str
    channel: str
    recipients: tuple[str, ...]
    prose: str
    rules: tuple[Rule, ...]

    @property
    def reasoning_prose(self) -> str:
        """Return leftover words of an analysis header: thoughts that slipped into it."""
        spoken = any(map(str.isalpha, re.sub(_WORD, "", self.prose)))
        return self.prose if self.channel == "analysis" and spoken else ""

    @property
    def is_fragment(self) -> bool:
        """Return True if the prose begins a word of a header."""
        word = self.prose.strip()
        unfinished = not self.channel and any(channel.startswith(word) for channel in _KINDS)
        return word == "to" or unfinished

    def rules_of(self, target: MessageRoute) -> tuple[Rule, ...]:
        """Return all rules that applied. Code is no odd content for a built-in."""
        for_builtin = is_builtin(target.name)
        own = (one for one in self.rules if not (for_builtin and one is Rule.ODD_CONTENT_TYPE))
        return (*own, *target.rules)


@dataclass(frozen=True, slots=True)
class MessageRoute:
    """Destination of a message; no kind: reasoning if another message follows, else the answer."""

    kind: SegmentKind | None
    name: str = ""
    rules: tuple[Rule, ...] = ()


class WholeHeader(NamedTuple):
    """Interpretation of a header that `<|message|>` ends.

    `form` is None for a header in no form. `lead` are its words that are reasoning. `callee` is the
    function that is called if the body is JSON that `<|call|>` closes.
    """

    role: str
    kind: SegmentKind | None
    name: str
    form: int | None
    lead: str
    callee: str
    rules: tuple[Rule, ...]


@lru_cache(maxsize=HEADERS_KEPT)
def whole_header(
    parts: tuple[Part, ...], tools: frozenset[str] | None, guessed: frozenset[str] | None
) -> WholeHeader:
    header = read_header(parts, trapped=False)
    target = route(header, tools)
    is_call = target.kind is SegmentKind.FUNCTION_CALL
    named = addressed(target.name) if is_call else (header.channel, None)
    written = _without_role(parts)
    return WholeHeader(
        header.role,
        target.kind,
        target.name,
        next((form for form, one in enumerate(header_forms(*named)) if one == written), None),
        header.reasoning_prose,
        probable_callee(header, target, guessed),
        header.rules_of(target),
    )


def addressed(name: str) -> tuple[str, str]:
    """Return the channel and the recipient of a call of a tool, by its name in rules."""
    if is_builtin(name):
        return BUILTIN_CHANNEL, name.removeprefix(BUILTIN_PREFIX)
    return CALL_CHANNEL, NAMESPACE + name


def read_header(parts: Iterable[Part], *, trapped: bool) -> Header:
    reader = _Reader(trapped=trapped)
    for part in parts:
        reader.read(part)
    return reader.header()


def route(header: Header, tools: frozenset[str] | None) -> MessageRoute:
    """Route by the `tools` that may be called; None when the request allows no calls at all."""
    for recipient in header.recipients:
        if name := _declared_name(recipient, tools or frozenset()):
            return _call(header, name, exact=recipient == addressed(name)[1])
    others = [name for name in header.recipients if name not in {ASSISTANT, "user"}]
    if others:
        return _undeclared(header, others[0], calls_allowed=tools is not None)
    if ASSISTANT in header.recipients:
        return MessageRoute(SegmentKind.REASONING, rules=(Rule.ADDRESSED_TO_ASSISTANT,))
    rules = (Rule.HEADER_LEFTOVER,) if header.recipients else ()
    if not header.channel:
        return MessageRoute(None, rules=(*rules, Rule.NO_CHANNEL))
    return MessageRoute(_KINDS[header.channel], rules=rules)


def probable_callee(header: Header, target: MessageRoute, tools: frozenset[str] | None) -> str:
    """Return the function that a message calls if it is JSON that `<|call|>` closes, or "".

    `tools` are those that may be guessed.
    """
    if not tools or target.kind in {SegmentKind.FUNCTION_CALL, SegmentKind.FINAL}:
        return ""
    if Rule.BUILTIN_NOT_ENABLED in target.rules:
        return ""
    words = (word for text in (*header.recipients, header.prose) for word in _WORDS.findall(text))
    named = {name for word in words if (name := _name_within(word.strip("."), tools))}
    if not named and len(tools) == 1 and not header.recipients:
        named = set(tools)
    return named.pop() if len(named) == 1 else ""


def with_callee(
    header: Header, tools: frozenset[str] | None, guessed: frozenset[str] | None
) -> Header:
    """Address a trapped header that `<|call|>` ended to the function that its JSON is for.

    `tools` are those of `route`, `guessed` those of `probable_callee`.
    """
    front, brace, body = header.prose.partition("{")
    if not brace or not is_object(brace + body):
        return header
    callee = probable_callee(replace(header, prose=front), route(header, tools), guessed)
    if not callee:
        return header
    rules = (*header.rules, Rule.CALL_BY_TERMINATOR)
    to = (NAMESPACE + callee,)
    return replace(header, recipients=to, prose=brace + body, rules=rules)


def _name_within(word: str, tools: frozenset[str]) -> str | None:
    while word and (name := _declared_name(word, tools)) is None:
        word = word.partition(".")[2]
    return name if word else None


def tool_of_role(role: str, tools: frozenset[str] | None) -> str:
    name = role.removeprefix(NAMESPACE)
    return name if name in (tools or frozenset()) and name not in _ROLES else ""


def adopt_spoken(text: str, following: int) -> tuple[Part, Rule] | None:
    """Read text between two messages as the front of a header without markers.

    `following` is the id behind it: CHANNEL, CONSTRAIN or MESSAGE.
    """
    if match := _SPOKEN_RECIPIENT.match(text):
        return Part(NO_MARKER, text[match.end() :]), Rule.MISSING_START
    match = _SPOKEN_CHANNEL.fullmatch(text)
    if match and (following != CHANNEL or "to=" in text):
        return Part(CHANNEL, match.group(1) or match.group(2)), Rule.HEADER_AS_TEXT
    return None


def is_spoken_header(text: str) -> bool:
    return _SPOKEN_ROLE.match(text) is not None


def _declared_name(recipient: str, tools: frozenset[str]) -> str | None:
    if recipient == ASSISTANT:
        return None
    bare = recipient.removeprefix(NAMESPACE)
    trimmed = bare.removeprefix(NAMESPACE).rstrip(".")
    spellings = (bare, bare.removesuffix("json"), bare.removesuffix("code"), trimmed)
    # Behind `functions.` a function is meant first, without it what the model was trained with.
    fronts = (BUILTIN_PREFIX, "") if bare == recipient else ("", BUILTIN_PREFIX)
    names = (front + name for name in spellings for front in fronts)
    return next((name for name in names if name in tools), None)


def _call(header: Header, name: str, *, exact: bool) -> MessageRoute:
    rules = [] if exact else [Rule.RECIPIENT_NORMALISED]
    if len(header.recipients) > 1:
        rules.append(Rule.DUPLICATE_RECIPIENT)
    trained = _BUILTIN_CHANNELS if is_builtin(name) else {CALL_CHANNEL}
    if header.channel not in trained:
        rules.append(Rule.CALL_OFF_COMMENTARY)
    return MessageRoute(SegmentKind.FUNCTION_CALL, name, tuple(rules))


def _undeclared(header: Header, recipient: str, *, calls_allowed: bool) -> MessageRoute:
    # Clients answer a call of an undeclared function, and the model learns from that.
    namespace, _, name = recipient.partition(".")
    if namespace == "functions" and FUNCTION_NAME.fullmatch(name):
        if not calls_allowed:
            return MessageRoute(SegmentKind.REASONING, rules=(Rule.CALL_NOT_ALLOWED,))
        call = _call(header, name, exact=True)
        return MessageRoute(call.kind, name, (*call.rules, Rule.UNDECLARED_FUNCTION))
    if namespace in _BUILTINS:
        return MessageRoute(SegmentKind.REASONING, rules=(Rule.BUILTIN_NOT_ENABLED,))
    # An answer is for the user, whatever else its header says; arguments without a recipient are
    # not.
    kind = SegmentKind.FINAL if header.channel == "final" else SegmentKind.REASONING
    return MessageRoute(kind, rules=(Rule.UNKNOWN_RECIPIENT,))


def _is_junk(prose: str, channel: str) -> bool:
    if _ONLY_CHANNELS.fullmatch(prose):
        return True
    if channel == "final" or prose.startswith("{"):
        return False
    if channel:
        return bool(prose) and not any(map(str.isalpha, prose))
    return bool(prose) and prose.isascii() and not any(map(str.isalnum, prose))


class _Reader:
    def __init__(self, *, trapped: bool) -> None:
        self._trapped = trapped
        self._role = ASSISTANT
        self._channel = ""
        self._recipients: list[str] = []
        self._left: list[str] = []
        self._rules: list[Rule] = []

    def read(self, part: Part) -> None:
        if part.marker == NO_MARKER:
            text = self._read_front(part.text)
        elif part.marker == START:
            text = self._read_role(part.text)
        elif part.marker == CHANNEL:
            text = self._read_channel(part.text)
        else:
            text = self._read_content_type(part.text)
        strip = self._strip_front if self._trapped else self._strip_anywhere
        self._left.append(strip(text))

    def header(self) -> Header:
        if self._trapped:
            prose = "".join(self._left).lstrip()
        else:
            prose = " ".join(filter(None, map(str.strip, self._left)))
        junk = self._trapped and _is_junk(prose, self._channel)
        if junk or (prose and not self._trapped):
            self._rules.append(Rule.HEADER_LEFTOVER)
        return Header(
            self._role,
            self._channel,
            tuple(self._recipients),
            "" if junk else prose,
            tuple(self._rules),
        )

    def _read_front(self, text: str) -> str:
        match = _ROLE_AGAIN.match(text)
        if not match:
            # Output without any markup may well begin with the word "final".
            return text if self._trapped else self._read_spoken_channel(text)
        self._rules.append(Rule.DOUBLED_START)
        return self._read_spoken_channel(text[match.end() :])

    def _read_role(self, text: str) -> str:
        match = _FIRST_WORD.match(text)
        word = match.group(1) if match else ""
        if word.startswith(ASSISTANT):
            return self._read_spoken_channel(text[text.index(ASSISTANT) + len(ASSISTANT) :])
        if not word or word.startswith(("to=", *_KINDS)):
            self._rules.append(Rule.MISSING_ROLE)
            return self._read_spoken_channel(text)
        self._role = word
        return text.lstrip()[len(word) :]

    def _read_spoken_channel(self, text: str) -> str:
        # In a trapped header a channel counts only where it is glued to the role.
        match = (_GLUED_CHANNEL if self._trapped else _CHANNEL_FIRST).match(text)
        if not match:
            return text
        self._rules.append(Rule.HEADER_AS_TEXT)
        return self._read_channel(text)

    def _read_channel(self, text: str) -> str:
        # A word in capitals is more likely to be the body, where that is in the header.
        match = (_CHANNEL_FIRST if self._trapped else _CHANNEL_IN_ANY_CASE).match(text)
        if not match:
            return text
        if self._channel:
            self._rules.append(Rule.DUPLICATE_CHANNEL)
        else:
            self._channel = match.group(1).lower()
        return text[match.end() :]

    def _read_content_type(self, text: str) -> str:
        match = _CONSTRAINED.match(text)
        if not match:
            return text
        self._note_content_type(match.group(1) or match.group(2))
        return text[match.end() :]

    def _strip_anywhere(self, text: str) -> str:
        for match in _RECIPIENT_ANYWHERE.finditer(text):
            self._note_recipient(match)
        text = _RECIPIENT_ANYWHERE.sub("", text)
        for match in _CONTENT_TYPE_ANYWHERE.finditer(text):
            self._note_content_type(match["type"])
        return _CONTENT_TYPE_ANYWHERE.sub("", text)

    def _strip_front(self, text: str) -> str:
        at = 0
        while match := _ELEMENT_FIRST.match(text, at):
            at = match.end()
            if match["type"]:
                self._note_content_type(match["type"])
            else:
                self._note_recipient(match)
        return text[at:]

    def _note_recipient(self, match: re.Match[str]) -> None:
        name = match["plain"] or (match["space"] or "") + (match["quoted"] or "")
        if not name:
            self._rules.append(Rule.HEADER_LEFTOVER)
            return
        self._recipients.append(name)
        if not match[0].endswith(f"to={name}"):
            self._rules.append(Rule.RECIPIENT_NORMALISED)

    def _note_content_type(self, content_type: str) -> None:
        if content_type != "json":
            self._rules.append(Rule.ODD_CONTENT_TYPE)


def header_forms(channel: str, recipient: str | None = None) -> Iterator[tuple[Part, ...]]:
    """Yield the forms of a header: the parts behind `<|start|>assistant`.

    `recipient` is whole, as in `functions.f`; None for a message to the user.
    """
    if recipient is None:
        orders = [("", channel)]
        content_types = _TYPES_OF_MESSAGES
    else:
        to = f" to={recipient}"
        orders = [(to, channel), ("", channel + to)]
        content_types = _TYPES_OF_CALLS if channel == CALL_CHANNEL else _TYPES_OF_BUILTINS
    for front, channel_text in orders:
        for text, constrained in content_types:
            yield (Part(NO_MARKER, front), Part(CHANNEL, channel_text + text), *constrained)


def _without_role(parts: Sequence[Part]) -> tuple[Part, ...]:
    if not parts or parts[0].marker != START:
        return tuple(parts)
    return (Part(NO_MARKER, parts[0].text.removeprefix(ASSISTANT)), *parts[1:])
