"""A context as the token ids of a prompt: the system and developer messages, then its items.

The messages are openai-harmony's; the ids are made here, piece by piece as openai-harmony 0.0.8
does it (which decides where tokens end), with a tokeniser that is linear and frees the GIL. Text
from outside only ever passes through `Vocabulary.encode`, so it cannot become a marker.

Only the header of a call or an answer whose id says that the model wrote it in another form is
repeated in that form (`headers`), so that the prompt is the one it went on from.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gateway.cache import LruCache, lasting_json
from gateway.generation import PREAMBLE, Prompt, Span
from gateway.ids import call_form, message_form
from gateway.models.format import RenderOptions, RepeatedHistory, SchemaLimits
from gateway.models.harmony.builtins import sections
from gateway.models.harmony.framing import OPENING
from gateway.models.harmony.messages import (
    MessageWriter,
    call_message,
    harmony_messages,
    recipient,
    result_message,
)
from gateway.models.harmony.typescript import (
    SchemaNormaliser,
    comment_lines,
    function_text,
    json_line,
)
from gateway.models.harmony.vocabulary import CHANNEL, MESSAGE, START
from gateway.models.history import (
    PlacedItem,
    in_call_order,
    leading_instructions,
    message_text,
    since_compaction,
    with_approvals,
    without_stale_reasoning,
)
from gateway.protocol.items import CallItem, Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gateway.constraints.rules import AnswerFormat
    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.items import Item


_ANY_OBJECT: Final = "The answer is exactly one JSON object, with nothing before or behind it."
SYSTEM_MESSAGES_MAX: Final = 64
"""Whose ids are kept. There is one for each effort, date, and whether there are tools."""
ID_BYTES: Final = 4
ENTRY_IDS: Final = 120
"""What an entry of the cache takes besides its ids and their source, in ids."""
_LOCATION: Final = "Where the user is, roughly, in case a web search depends on it: "
_DECLARED: Final = " "
"""Stands where an item has the name of a function, which is another."""


class SystemFacts(NamedTuple):
    """All that the system message says: of what a request holds, no more than its effort, and which
    tools it uses. `python_description` is the operator's.
    """

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
    def of(cls, options: RenderOptions) -> SystemFacts:
        """Return the facts of the system message of one request."""
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
    """Return the body of the system message, as openai-harmony 0.0.8 writes it."""
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
    told = sections(
        browser=facts.has_browser,
        python=facts.has_python,
        python_description=facts.python_description,
    )
    tools = ["# Tools", *told] if told else []
    return "\n\n".join(["\n".join(about), f"Reasoning: {facts.effort}", *tools, channels])


def instructions_before(options: RenderOptions, leading: Sequence[str]) -> str:
    """Return the request's instructions, then its context's first ones, then the user's location.

    The location is the request's word, too, and no fact of the system.
    """
    location = " ".join((options.builtins.location or "").split())
    where = f"{_LOCATION}{location}." if location else ""
    return "\n\n".join(text for text in (options.instructions, *leading, where) if text)


def developer_text(options: RenderOptions, leading: Sequence[str], limits: SchemaLimits) -> str:
    """Return the body of the first developer message, as openai-harmony 0.0.8 writes it.

    Empty for none. The last section is in the form that OpenAI's guide to Harmony shows. Raises
    `InvalidRequest` for a function's name or schema that cannot be written.
    """
    sections = []
    if instructions := instructions_before(options, leading):
        sections += ["# Instructions", instructions]
    if options.tools:
        sections += ["# Tools", "\n".join(_function_lines(options, limits))]
    if options.answer is not None:
        sections += format_sections(options.answer)
    return "\n\n".join(sections)


def _function_lines(options: RenderOptions, limits: SchemaLimits) -> Iterator[str]:
    normaliser = SchemaNormaliser(limits)
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
    """Yield the paragraphs that show the format: name, description, schema on one line.

    The schema is written as the request gave it, not as TypeScript: it is for JSON.
    """
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

    What a text costs must not depend on what another tenant sent before. So only system messages
    are kept for everyone, in which there is no text of a request; instructions, declarations of
    tools, and items of a history, which clients repeat in every request, are kept for those of the
    same scope (`RenderOptions.scope`).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        schema_limits: SchemaLimits | None = None,
        *,
        repeated_ids_max: int = 1 << 22,
    ) -> None:
        """`repeated_ids_max` bounds the ids of declarations and of items that are kept, of
        `ID_BYTES` each; what they were made from counts, too.
        """
        self.vocabulary = vocabulary
        self._writer = MessageWriter(vocabulary)
        self._schema_limits = schema_limits or SchemaLimits()
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
        """Return the prompt that continues `items`, ending with `<|start|>assistant`.

        They may stand behind a history of which only is known what is `repeated` of it.

        Items that carry ids are repeated id for id. Items that are not shown (what a compaction
        made short, stale reasoning, calls that were cut off) and leading instructions, which are
        part of the preamble, have no span; nor has what is repeated of a history. Raises
        `InvalidRequest` for text, names, schemas and outputs that have no rendering.
        """
        leading = 0 if repeated else leading_instructions(items)
        instructing = repeated.instructions if repeated else items[:leading]
        ids = array("I", self._system_ids(SystemFacts.of(options)))
        told = instructions_of(instructing) if instructing else ()
        ids.extend(self._developer_ids(options, told))
        spans = [Span(PREAMBLE, 0, len(ids))]
        if repeated:
            ids.extend(repeated.ids)
        start, last = len(ids), len(items) - 1
        for placed in shown(items, leading, options.approved):
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
        said = _cacheable_json(item) if scope else None
        if said is None:
            return self.render_item(item, function)
        key = scope, function or "", said
        return self._repeated.get(key) or self._keep(key, self.render_item(item, function))

    def _keep(self, key: tuple[bytes, str, bytes], ids: Sequence[int]) -> Sequence[int]:
        self._repeated.put(key, ids, size=len(ids) + len(key[-1]) // ID_BYTES + ENTRY_IDS)
        return ids

    def render_item(self, item: ContextItem, function: str | None = None) -> Sequence[int]:
        """Make the ids of one item anew; empty for an item without content.

        `function` names the function that an output belongs to.
        """
        typed = item.item()
        if isinstance(typed, Message) and (opening := self._opening(typed)):
            text = message_text(typed)
            return self._writer.plain_message(opening, text) if text or typed.role == "user" else []
        ids = array("I")
        for message in harmony_messages(typed, function):
            ids.extend(self._writer.message_ids(message, form=_form(typed)))
        return ids

    def render_result(self, name: str, text: str) -> tuple[int, ...]:
        return tuple(self._writer.message_ids(result_message(name, text)))

    def render_call(self, name: str, arguments: str) -> tuple[int, ...]:
        return tuple(self._writer.message_ids(call_message(name, arguments)))

    def count_ids(self, text: str) -> int:
        return self._writer.count_ids(text)

    def _opening(self, message: Message) -> tuple[int, ...]:
        if message.role == "user":
            return self._user
        if message.role != "assistant" or message_form(message.id or ""):
            return ()
        return self._commentary if message.phase == "commentary" else self._final

    def _new_system_ids(self, facts: SystemFacts) -> Sequence[int]:
        return self._writer.plain_message(self._system, system_text(facts))

    def _developer_ids(self, options: RenderOptions, leading: Sequence[str]) -> Sequence[int]:
        location = options.builtins.location
        if not (options.instructions or leading or options.tools or options.answer or location):
            return ()
        if not options.scope:
            return self._new_developer_ids(options, leading)
        key = options.scope, _DECLARED, _declarations(options, leading)
        return self._repeated.get(key) or self._keep(key, self._new_developer_ids(options, leading))

    def _new_developer_ids(self, options: RenderOptions, leading: Sequence[str]) -> Sequence[int]:
        text = developer_text(options, leading, self._schema_limits)
        return self._writer.plain_message(self._developer, text) if text else ()


def _form(item: Item) -> int:
    if isinstance(item, CallItem):
        return call_form(item.call_id or "")
    is_answer = isinstance(item, Message) and item.role == "assistant"
    return message_form(item.id or "") if is_answer else 0


def instructions_of(items: Sequence[ContextItem]) -> list[str]:
    """Return the texts of these items, all of which are messages."""
    typed = (item.item() for item in items)
    return [message_text(item) for item in typed if isinstance(item, Message)]


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


def shown(
    items: Sequence[ContextItem], leading: int, approved: str | None = None
) -> Iterable[PlacedItem]:
    """Return the items behind the `leading` instructions that become messages, in their order.

    `approved` is that of `RenderOptions`.
    """
    behind = items[leading:]
    if len(behind) == 1 and behind[0].kind == "message":
        return [PlacedItem(leading, behind[0])]
    placed = (PlacedItem(index, item) for index, item in enumerate(behind, leading))
    if all(item.kind == "message" for item in behind):
        return placed  # only reasoning and calls, and what is behind a summary, are ever left out
    told = with_approvals(placed, approved)
    return list(in_call_order(without_stale_reasoning(since_compaction(told))))
