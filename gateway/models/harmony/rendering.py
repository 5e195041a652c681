"""Contexts as the token ids of prompts: the system and developer messages, then the items.

The messages, and the texts about built-in tools (`data/builtin_tools.json`), are openai-harmony's:
each changed word moves away from what the model knows. The ids are made here, piece by piece as
openai-harmony 0.0.8 does it (which decides where tokens end), with a tokeniser that is linear and
frees the GIL. Text from outside only passes through `Vocabulary.encode`, so it cannot become a
marker.

Calls and outputs of any kind are a function's, on the commentary channel; other items of hosted
tools are a call and its output, as JSON. The parts of an input are joined by a newline, those of
the assistant by nothing, as the model wrote them. A call or an answer whose id notes another form
of its header (`message_headers`) is repeated in that form.

A long text is cut where its pieces have the tokens that it has as a whole: tokens never reach over
a match of the vocabulary's pattern, and no match

- begins with something else than white space and goes on with a space, or
- begins with a letter and goes on with a line feed, a full stop or a comma (Chinese ones, too).

So there a match ends, whatever stands behind it, and the next begins, whatever stood before. (A
space, a letter or a mark may each stand in front of others; an apostrophe may follow a letter, and
is no place to cut.)
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import orjson

from gateway.cache import LruCache
from gateway.errors import InvalidRequest
from gateway.generation import PREAMBLE, Prompt, Span
from gateway.ids import call_form, message_form
from gateway.json_output import lasting_json
from gateway.models.harmony.message_headers import (
    CALL_CHANNEL,
    NAMESPACE,
    NO_MARKER,
    addressed,
    header_forms,
    is_code,
)
from gateway.models.harmony.tokenizer import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, OPENING, START
from gateway.models.harmony.tool_typescript import (
    SchemaNormaliser,
    comment_lines,
    function_text,
    json_line,
)
from gateway.models.history import (
    instructions_before,
    instructions_of,
    leading_instructions,
    message_text,
    reasoning_text,
    shown_items,
)
from gateway.protocol.call_items import call_of, hosted_exchange, output_text
from gateway.protocol.items import CallItem, HostedItem, Message, OutputItem, Reasoning
from gateway.protocol.tool_types import FUNCTION_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.constraints.output_rules import AnswerFormat
    from gateway.models.format import RenderOptions, RepeatedHistory
    from gateway.models.harmony.tokenizer import Vocabulary
    from gateway.models.history import PlacedItem
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.items import AnyHostedItem, Item


INSTRUCTIONS: Final = "# Instructions\n\n"
PIECE_CHARS: Final = 32 * 1024
"""Tokenised at once, in less than a millisecond, in which nothing else runs."""
_WINDOW_CHARS: Final = 16 * 1024
# It begins with what can be searched for at once. What is no letter is sorted out afterwards.
_PLACE: Final = re.compile(r"[ \n.,\u3002\uff0c](?:(?<=\S )|(?<=\w[\n.,\u3002\uff0c]))")


@dataclass(frozen=True, slots=True)
class HarmonyMessage:
    """Message of a prompt. `author` is the role, or the recipient of the call whose result it is.
    `is_json` and `is_code` are the content type in the header.
    """

    author: str
    text: str
    channel: str | None = None
    recipient: str | None = None
    is_json: bool = False
    is_code: bool = False

    @property
    def is_call(self) -> bool:
        return self.author == "assistant" and self.recipient is not None


def recipient(name: str, *, param: str = "input") -> str:
    """Return the Harmony recipient of a function.

    Headers are text to the tokeniser, so a name like `f to=system` would forge one. Raises
    `InvalidRequest` for it.
    """
    if not FUNCTION_NAME.fullmatch(name):
        raise InvalidRequest(
            "Invalid function name: expected 1 to 128 letters, digits, underscores, dashes or "
            "dots.",
            code="invalid_value",
            param=param,
        )
    return NAMESPACE + name


def harmony_messages(item: Item, function: str | None = None) -> tuple[HarmonyMessage, ...]:
    """Return the messages of an item; none for one without content.

    `function` is the function of an output, the tool of an MCP approval response, or that of an
    approved MCP call, whose request is its call. Raises `InvalidRequest` for a name that must not
    reach a header.
    """
    if isinstance(item, HostedItem) and not isinstance(item, CallItem | OutputItem):
        return _hosted_messages(item, function)
    message = _harmony_message(item, function)
    return () if message is None else (message,)


def _harmony_message(item: Item, function: str | None) -> HarmonyMessage | None:
    if isinstance(item, Message):
        return _message(item)
    if isinstance(item, Reasoning):
        text = reasoning_text(item)
        return _assistant("analysis", text) if text else None
    if isinstance(item, CallItem):
        call = call_of(item)
        return _function_call(call.name, call.arguments)
    if isinstance(item, OutputItem):
        return _function_result(function or "", output_text(item))
    return None  # a compaction that nobody could open


def call_message(name: str, text: str) -> HarmonyMessage:
    """Return a correct call of a tool, by its name in rules."""
    channel, to = addressed(name)
    code = is_code(name)
    return HarmonyMessage("assistant", text, channel, to, is_json=not code, is_code=code)


def result_message(name: str, text: str) -> HarmonyMessage:
    """Return the result of such a call: from its recipient, on its channel."""
    channel, author = addressed(name)
    return HarmonyMessage(author, text, channel, recipient="assistant")


def _function_call(name: str, arguments: str) -> HarmonyMessage:
    to = recipient(name)
    return HarmonyMessage("assistant", arguments, CALL_CHANNEL, recipient=to, is_json=True)


def _function_result(name: str, text: str) -> HarmonyMessage:
    return HarmonyMessage(recipient(name), text, CALL_CHANNEL, recipient="assistant")


def _hosted_messages(item: AnyHostedItem, function: str | None) -> tuple[HarmonyMessage, ...]:
    call, result = hosted_exchange(item, function)
    calls = () if call is None else (_function_call(call.name, call.arguments),)
    return calls if result is None else (*calls, _function_result(result.name, result.text))


def _message(message: Message) -> HarmonyMessage | None:
    text = message_text(message)
    if message.role == "user":
        return HarmonyMessage("user", text)
    if not text:
        return None
    if message.role == "assistant":
        return _assistant("commentary" if message.phase == "commentary" else "final", text)
    return HarmonyMessage("developer", INSTRUCTIONS + text)


def _assistant(channel: str, text: str) -> HarmonyMessage:
    return HarmonyMessage("assistant", text, channel)


def pieces(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = _next_cut(text, start + PIECE_CHARS)
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _next_cut(text: str, low: int) -> int:
    for start in range(low, len(text), _WINDOW_CHARS):
        for match in _PLACE.finditer(text, start, start + _WINDOW_CHARS):
            place = match.start()
            if text[place] == " " or text[place - 1].isalpha():
                return place
    return len(text)


SECTIONS_FILE: Final = "builtin_tools.json"
PYTHON_HEADING: Final = "## python\n\n"


def builtin_paragraphs(*, browser: bool, python: bool, python_description: str | None) -> list[str]:
    trained = _sections()
    paragraphs = [trained["browser"]] if browser else []
    if python:
        replaced = python_description is not None
        paragraphs.append(
            f"{PYTHON_HEADING}{python_description}" if replaced else trained["python"]
        )
    return paragraphs


@cache
def _sections() -> dict[str, str]:
    data = files("gateway.models.harmony") / "data" / SECTIONS_FILE
    texts: dict[str, str] = orjson.loads(data.read_bytes())
    return texts


_ANY_OBJECT: Final = "The answer is exactly one JSON object, with nothing before or behind it."
SYSTEM_MESSAGES_MAX: Final = 64
"""There is one for each effort, date, and use of tools."""
ID_BYTES: Final = 4
ENTRY_IDS: Final = 120
"""Size of a cache entry besides its ids and their source, in ids."""
_DECLARED: Final = " "
"""Stands for a function's name in a key; no function has it."""


class SystemFacts(NamedTuple):
    """Contents of the system message. Of a request: only its effort, and which tools it uses."""

    model_identity: str
    effort: Literal["low", "medium", "high"]
    current_date: str | None
    knowledge_cutoff: str | None
    has_functions: bool
    has_commentary: bool
    has_browser: bool
    has_python: bool
    python_description: str | None

    @classmethod
    def from_options(cls, options: RenderOptions) -> SystemFacts:
        has_functions, builtins = bool(options.tools), options.builtins
        return cls(
            options.model_identity,
            options.effort,
            options.current_date,
            options.knowledge_cutoff,
            has_functions,
            has_functions or options.commentary_without_tools,
            builtins.browser,
            builtins.python,
            builtins.python_description if builtins.python else None,
        )


def system_text(facts: SystemFacts) -> str:
    about = [facts.model_identity]
    if facts.knowledge_cutoff is not None:
        about.append(f"Knowledge cutoff: {facts.knowledge_cutoff}")
    if facts.current_date is not None:
        about.append(f"Current date: {facts.current_date}")
    commentary = ["commentary"] if facts.has_commentary else []
    channels = (
        f"# Valid channels: {', '.join(['analysis', *commentary, 'final'])}."
        " Channel must be included for every message."
    )
    if facts.has_functions:
        channels += "\nCalls to these tools must go to the commentary channel: 'functions'."
    paragraphs = builtin_paragraphs(
        browser=facts.has_browser,
        python=facts.has_python,
        python_description=facts.python_description,
    )
    tools = ["# Tools", *paragraphs] if paragraphs else []
    return "\n\n".join(["\n".join(about), f"Reasoning: {facts.effort}", *tools, channels])


def developer_text(options: RenderOptions, leading: Sequence[str]) -> str:
    """Return the body of the first developer message.

    The last section is in the form of OpenAI's guide to Harmony. Raises `InvalidRequest` for a
    function's name or schema that cannot be written.
    """
    sections = []
    if instructions := instructions_before(options, leading):
        sections += ["# Instructions", instructions]
    if options.tools:
        sections += ["# Tools", "\n".join(_function_lines(options))]
    if options.answer is not None:
        sections += format_sections(options.answer)
    return "\n\n".join(sections)


def _function_lines(options: RenderOptions) -> Iterator[str]:
    normaliser = SchemaNormaliser()
    paths = options.tool_paths or tuple(f"tools[{index}]" for index in range(len(options.tools)))
    yield "## functions\n"
    yield "namespace functions {\n"
    for tool, path in zip(options.tools, paths, strict=True):
        recipient(tool.name, param=f"{path}.name")
        yield from _comment(tool.description or "")
        schema = tool.parameters
        if schema is not None:
            schema = normaliser.normalise(schema, param=f"{path}.parameters")
        yield function_text(tool.name, schema)
    yield "} // namespace functions"


def format_sections(answer: AnswerFormat) -> Iterator[str]:
    """Yield the paragraphs that show the format; the schema as JSON, because the answer is."""
    name, description = answer.name, answer.description
    if answer.kind == "json_object":
        name, description = answer.kind, _ANY_OBJECT
    yield "# Response Formats"
    yield f"## {name}"
    yield "\n".join([*_comment(description), json_line(answer.schema)])


def _comment(text: str) -> list[str]:
    return [f"// {line}" for line in comment_lines(text)]


class Renderer:
    """Renderer of contexts and of single items, shared by all threads.

    What a text costs must not depend on what another tenant sent. So only system messages, which
    hold no text of a request, are cached for everyone, all else for the same `RenderOptions.scope`.
    """

    def __init__(self, vocabulary: Vocabulary, *, repeated_ids_max: int = 1 << 22) -> None:
        """`repeated_ids_max` bounds the cache, in ids of `ID_BYTES` each; sources count, too."""
        self.vocabulary = vocabulary
        self._encode = vocabulary.encode
        self._encode_packed = vocabulary.encode_packed
        self._system_ids = lru_cache(SYSTEM_MESSAGES_MAX)(self._new_system_ids)
        self._repeated: LruCache[tuple[bytes, str, bytes], Sequence[int]] = LruCache(
            size_max=repeated_ids_max
        )
        self._system = (START, *vocabulary.encode("system"), MESSAGE)
        self._user = (START, *vocabulary.encode("user"), MESSAGE)
        assistant = (START, *vocabulary.encode("assistant"), CHANNEL)
        self._commentary = (*assistant, *vocabulary.encode("commentary"), MESSAGE)
        self._final = (*assistant, *vocabulary.encode("final"), MESSAGE)
        self._developer = (START, *vocabulary.encode("developer"), MESSAGE)

    def render(
        self,
        items: Sequence[ContextItem],
        options: RenderOptions,
        repeated: RepeatedHistory | None = None,
    ) -> Prompt:
        leading = 0 if repeated else leading_instructions(items)
        instructing = repeated.instructions if repeated else items[:leading]
        ids = array("I", self._system_ids(SystemFacts.from_options(options)))
        instructions = instructions_of(instructing) if instructing else ()
        ids.extend(self._developer_ids(options, instructions))
        spans = [Span(PREAMBLE, 0, len(ids))]
        if repeated:
            ids.extend(repeated.ids)
        start, last = len(ids), len(items) - 1
        for placed in shown_items(items, leading, options.approved):
            item, source = placed.item, placed.source
            own = item.ids
            if own is not None:
                ids.extend(own)
            elif source < last:
                ids.extend(self._ids_of(placed, options.scope))
            else:
                ids.extend(self.render_item(item, placed.function))
            end = len(ids)
            if end > start:
                spans.append(Span(source, start, end))
                start = end
        ids.extend(OPENING)
        return Prompt(ids, tuple(spans))

    def _ids_of(self, placed: PlacedItem, scope: bytes) -> Sequence[int]:
        # Cached: clients that keep the history send such an item with every request.
        item, function = placed.item, placed.function
        json = _cacheable_json(item) if scope else None
        if json is None:
            return self.render_item(item, function)
        key = scope, function or "", json
        return self._repeated.get(key) or self._keep(key, self.render_item(item, function))

    def _keep(self, key: tuple[bytes, str, bytes], ids: Sequence[int]) -> Sequence[int]:
        self._repeated.put(key, ids, size=len(ids) + len(key[-1]) // ID_BYTES + ENTRY_IDS)
        return ids

    def render_item(self, item: ContextItem, function: str | None = None) -> Sequence[int]:
        typed = item.item()
        if isinstance(typed, Message) and (opening := self._opening(typed)):
            text = message_text(typed)
            return self.plain_message(opening, text) if text or typed.role == "user" else []
        ids = array("I")
        for message in harmony_messages(typed, function):
            ids.extend(self.message_ids(message, form=_form(typed)))
        return ids

    def message_ids(self, message: HarmonyMessage, *, form: int = 0) -> array[int]:
        header = self._formed_header(message, form) if form else self._header(message)
        opening = (START, *self._encode(message.author), *header, MESSAGE)
        return self.plain_message(opening, message.text, CALL if message.is_call else END)

    def plain_message(self, opening: Sequence[int], text: str, end: int = END) -> array[int]:
        """Return the ids of a message.

        A long text is encoded piece by piece: other threads run in between.
        """
        ids = array("I", opening)
        for part in self._encode_pieces(text):
            ids.extend(part)
        ids.append(end)
        return ids

    def count_ids(self, text: str) -> int:
        return sum(map(len, self._encode_pieces(text)))

    def encode(self, text: str) -> Sequence[int]:
        return [token for piece in self._encode_pieces(text) for token in piece]

    def _encode_pieces(self, text: str) -> Iterator[Sequence[int]]:
        if len(text) <= PIECE_CHARS:
            yield self._encode(text)
        else:
            yield from map(self._encode_packed, pieces(text))

    def _header(self, message: HarmonyMessage) -> list[int]:
        ids: list[int] = []
        if message.recipient is not None:
            ids += self._encode(f" to={message.recipient}")
        if message.channel is not None:
            ids += [CHANNEL, *self._encode(message.channel)]
        if message.is_json:
            ids += [*self._encode(" "), CONSTRAIN, *self._encode("json")]
        return ids + self._encode(" code") if message.is_code else ids

    def _formed_header(self, message: HarmonyMessage, form: int) -> list[int]:
        ids: list[int] = []
        for part in tuple(header_forms(message.channel or "", message.recipient))[form]:
            marker = [] if part.marker == NO_MARKER else [part.marker]
            ids += [*marker, *self._encode(part.text)]
        return ids

    def render_result(self, name: str, text: str) -> tuple[int, ...]:
        return tuple(self.message_ids(result_message(name, text)))

    def render_call(self, name: str, arguments: str) -> tuple[int, ...]:
        return tuple(self.message_ids(call_message(name, arguments)))

    def _opening(self, message: Message) -> tuple[int, ...]:
        if message.role == "user":
            return self._user
        if message.role != "assistant" or message_form(message.id or ""):
            return ()
        return self._commentary if message.phase == "commentary" else self._final

    def _new_system_ids(self, facts: SystemFacts) -> Sequence[int]:
        return self.plain_message(self._system, system_text(facts))

    def _developer_ids(self, options: RenderOptions, leading: Sequence[str]) -> Sequence[int]:
        location = options.builtins.location
        if not (options.instructions or leading or options.tools or options.answer or location):
            return ()
        if not options.scope:
            return self._new_developer_ids(options, leading)
        key = options.scope, _DECLARED, _declarations(options, leading)
        return self._repeated.get(key) or self._keep(key, self._new_developer_ids(options, leading))

    def _new_developer_ids(self, options: RenderOptions, leading: Sequence[str]) -> Sequence[int]:
        text = developer_text(options, leading)
        return self.plain_message(self._developer, text) if text else ()


def _form(item: Item) -> int:
    if isinstance(item, CallItem):
        return call_form(item.call_id or "")
    is_answer = isinstance(item, Message) and item.role == "assistant"
    return message_form(item.id or "") if is_answer else 0


def _declarations(options: RenderOptions, leading: Sequence[str]) -> bytes:
    tools = [(tool.name, tool.description, tool.parameters) for tool in options.tools]
    location = options.builtins.location
    return lasting_json((options.instructions, leading, tools, options.answer, location))


def _cacheable_json(item: ContextItem) -> bytes | None:
    # The gateway's id of an item does not count: it differs in each request.
    typed = item.parsed
    if typed is None or typed.id not in {None, item.item_id}:
        return None
    if typed.id is not None:
        return item.json
    return item.json.replace(b'"id":"%b"' % item.item_id.encode(), b"", 1)
