"""Script of a turn: think, perhaps announce and call a tool, or answer.

Results of `browser` stand in a prompt as displays: `[3] Title (https://host/path)`, the line
`**viewing lines [40 - 61] of 180**`, an empty line, and numbered ones: `L40: Some text, and 【7†a
link】 in it.`
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gateway.simulator.argument_values import make_arguments, make_value, tools_of
from gateway.simulator.scripted_turns import (
    ANALYSIS,
    CALL_PREFIX,
    COMMENTARY,
    FINAL,
    PYTHON,
    PartWriter,
    is_call,
    script_of,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from gateway.models.harmony.tokenizer import Vocabulary
    from gateway.simulator.argument_values import Schema, Tool
    from gateway.simulator.scripted_turns import Bodies, Message, Part, Script

_EFFORT: Final = re.compile(r"^Reasoning: (low|medium|high)\s*$", re.MULTILINE)
_NAME: Final = re.compile(r"\bmy name is ([\w'\-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    name: str
    text: str


@dataclass(frozen=True)
class Conversation:
    """Messages before the open turn, read on demand."""

    messages: tuple[Message, ...]
    bodies: Bodies

    def _texts(self, role: str) -> list[str]:
        return [self.bodies.text(message) for message in self.messages if message.role == role]

    @cached_property
    def effort(self) -> str:
        match = _EFFORT.search(self.system)
        return match[1] if match else "medium"

    @cached_property
    def system(self) -> str:
        # The model's identity, built-in tools, channels.
        return "\n".join(self._texts("system"))

    @cached_property
    def developer(self) -> str:
        # Instructions, tools and response formats.
        return "\n".join(self._texts("developer"))

    @property
    def request(self) -> str:
        return self.users[-1] if self.users else ""

    @cached_property
    def users(self) -> list[str]:
        return self._texts("user")

    @cached_property
    def outputs(self) -> list[ToolOutput]:
        return self._outputs_from(0)

    @cached_property
    def new_outputs(self) -> list[ToolOutput]:
        after = [i for i, message in enumerate(self.messages) if message.role == "user"]
        return self._outputs_from(after[-1] + 1 if after else 0)

    @cached_property
    def user_name(self) -> str | None:
        names = [match[1] for text in self.users if (match := _NAME.search(text))]
        return names[-1] if names else None

    def _outputs_from(self, index: int) -> list[ToolOutput]:
        return [
            ToolOutput(name=message.role.removeprefix("functions."), text=self.bodies.text(message))
            for message in self.messages[index:]
            if message.role not in {"system", "developer", "user", "assistant"}
        ]


_QUOTE_CHARS_MAX: Final = 400
_FORMATS: Final = re.compile(r"^# Response Formats$", re.MULTILINE)
_SCHEMA_LINE: Final = re.compile(r"^\{", re.MULTILINE)
_MULTIBYTE: Final = re.compile(r"(?i)\b(?:emoji|unicode|chinese|japanese|cjk|multi-?byte)\b")
_TOOL_QUESTION: Final = re.compile(
    r"(?i)\bwhat (?:did|does|has) the (?:tool|function) s(?:ay|aid)\b"
)
_NAME_QUESTION: Final = re.compile(r"(?i)\b(?:what(?:'s| is) my name|who am i)\b")
_LAST_QUESTION: Final = re.compile(r"(?i)\bwhat (?:did|have) i (?:just )?(?:say|said|ask|asked)\b")
_SUMMARY_REQUEST: Final = re.compile(r"(?i)\b(?:write|give me) a summary of this conversation\b")
_TURNS_QUESTION: Final = re.compile(r"(?i)\bhow many (?:turns|messages|questions)\b")

MULTIBYTE: Final = (
    "Many bytes a character: 👋🏽 👩‍👩‍👧 🇯🇵, 东京 and 東京, 안녕하세요, नमस्ते, naïve, "
    "a combining e\N{COMBINING ACUTE ACCENT}, ⌈m/2⌉."
)
_THOUGHTS: Final = (
    "The user wants something from a scripted server.",
    "I look at the whole conversation before I answer.",
    "Nothing here is computed by a model, so the rules decide what I say.",
    "First I read the last message again and see whether a tool is asked for.",
    "Then I see what the tools have answered so far, and whether anything is missing.",
    "If the answer has to follow a schema, I keep to it.",
    "I should be brief, and I should quote the user so that they see I have read it.",
    "That is all there is to think about.",
)
_THOUGHTS_BY_EFFORT: Final = {"low": 1, "medium": 3, "high": len(_THOUGHTS)}


def thoughts(conversation: Conversation) -> str:
    count = _THOUGHTS_BY_EFFORT[conversation.effort]
    about = _quote(conversation.request) if conversation.request else "nothing yet"
    return " ".join([*_THOUGHTS[: count - 1], f"They say {about}.", *_THOUGHTS[-1:]])


def preamble(tool: Tool) -> str:
    return f"I will call {tool.name} and tell you what it says."


def answer(conversation: Conversation) -> str:
    schema = response_schema(conversation.developer)
    if schema is not None:
        value = make_value(schema, conversation.request)
        return json.dumps(value, ensure_ascii=False)
    if conversation.new_outputs and not _TOOL_QUESTION.search(conversation.request):
        return _report(conversation)
    return _reply(conversation)


def response_schema(developer: str) -> Schema | None:
    sections = _FORMATS.split(developer)
    begun = _SCHEMA_LINE.search(sections[-1]) if len(sections) > 1 else None
    if begun is None:
        return None
    try:
        schema, _ = json.JSONDecoder().raw_decode(sections[-1], begun.start())
    except ValueError:
        return None
    return dict(schema)


def _report(conversation: Conversation) -> str:
    lines = [f"{output.name} says: {output.text}" for output in conversation.new_outputs]
    return "\n".join([*lines, f"That is my answer to {_quote(conversation.request)}."])


def _reply(conversation: Conversation) -> str:
    request = conversation.request
    if _TOOL_QUESTION.search(request):
        outputs = conversation.outputs
        return f"The tool said: {outputs[-1].text}" if outputs else "No tool has said anything."
    if _SUMMARY_REQUEST.search(request):
        return _summary(conversation)
    if _NAME_QUESTION.search(request):
        name = conversation.user_name
        return f"Your name is {name}." if name else "You have not told me your name."
    if _LAST_QUESTION.search(request):
        return f"Before that you said {_quote(_previous(conversation))}."
    if _TURNS_QUESTION.search(request):
        return f"This is turn {len(conversation.users)} of our conversation."
    return _small_talk(conversation)


def _summary(conversation: Conversation) -> str:
    messages = conversation.users[:-1]
    listed = " ".join(f"{number}. {_quote(text)}" for number, text in enumerate(messages, 1))
    tools = "; ".join(
        f"{output.name} said {_quote(output.text)}" for output in conversation.outputs
    )
    return f"Messages of the user: {listed or 'none'} Tools: {tools or 'none'}."


def _small_talk(conversation: Conversation) -> str:
    turns = len(conversation.users)
    sentences = [f"You said {_quote(conversation.request)}.", f"This is turn {turns}"]
    if turns > 1:
        sentences[-1] += f"; before that you said {_quote(_previous(conversation))}"
    sentences[-1] += "."
    if _MULTIBYTE.search(conversation.request):
        sentences.append(MULTIBYTE)
    sentences.append("I am a scripted server, not a model 🤖.")
    return " ".join(sentences)


def _previous(conversation: Conversation) -> str:
    return conversation.users[-2] if len(conversation.users) > 1 else ""


def _quote(text: str) -> str:
    short = text if len(text) <= _QUOTE_CHARS_MAX else text[:_QUOTE_CHARS_MAX] + "…"
    return f"“{short}”"


BROWSER: Final = "browser."
QUOTED_WORDS_MAX: Final = 10
_HEAD: Final = re.compile(
    r"^\[(\d+)\] ([^\n]*)\n\*\*viewing lines \[(\d+) - (\d+)\] of \d+\*\*", re.MULTILINE
)
_LINE: Final = re.compile(r"^L(\d+): (.*)$", re.MULTILINE)
_LINK: Final = re.compile(r"【(\d+)†([^【】†]*)[^【】]*】")
_URL: Final = re.compile(r" \((https?://[^\s()]+)\)$")
_WORD: Final = re.compile(r"\w{3,}")


@dataclass(frozen=True, slots=True)
class Display:
    """Lines of a page; `url` is empty for results of a search or a find."""

    cursor: int
    title: str
    url: str
    lines: tuple[tuple[int, str], ...]
    links: tuple[tuple[int, str], ...]
    """Numbers and words, the lowest number first."""

    def best_link(self, words: frozenset[str]) -> int:
        # The link with most of these words; there must be one.
        return max(self.links, key=lambda one: len(words & words_of(one[1])))[0]

    def best_line(self, words: frozenset[str]) -> tuple[int, str]:
        """Return the line with most of these words."""
        lines = [(number, _LINK.sub(r"\2", line).strip()) for number, line in self.lines]
        prose = [one for one in lines if one[1] and not one[1].startswith(("#", "URL:"))]
        best = max(prose or lines, key=lambda one: len(words & words_of(one[1])))
        return best[0], " ".join(best[1].split()[:QUOTED_WORDS_MAX])


def words_of(text: str) -> frozenset[str]:
    # Longer words only, in lower case.
    return frozenset(_WORD.findall(text.casefold()))


def displays_of(outputs: Iterable[ToolOutput]) -> list[Display]:
    texts = [output.text for output in outputs if output.name.startswith(BROWSER)]
    return [display for text in texts if (display := _display(text)) is not None]


def _display(text: str) -> Display | None:
    head = _HEAD.search(text)
    if head is None:
        return None
    body = text[head.end() :]
    lines = tuple((int(number), line) for number, line in _LINE.findall(body))
    if not lines:
        return None
    url = _URL.search(head[2])
    links = sorted((int(number), words) for number, words in _LINK.findall(body))
    title = head[2] if url is None else head[2][: url.start()]
    return Display(int(head[1]), title, url[1] if url else "", lines, tuple(links))


QUOTE_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Act:
    """Action of a turn: a call to the recipient `kind`, or an answer."""

    kind: str
    text: str


def cited(shown: list[Display], request: str) -> str:
    return " ".join(_citation(one, words_of(request)) for one in shown)


def _citation(display: Display, words: frozenset[str]) -> str:
    number, quote = display.best_line(words)
    last = min(number + 1, display.lines[-1][0])
    place = f"L{number}-L{last}" if last > number else f"L{number}"
    return f"{display.title or 'The page'} says: {quote} 【{display.cursor}†{place}】."


_REFUSED: Final = re.compile(
    r"(?i)\b(?:don't|do not|never|without) (?:search|brows|us(?:e|ing)|run)"
)
_SEARCH_REQUEST: Final = re.compile(
    r"(?i)\b(?:search|browse|look up|find out|cite|on the (?:web|internet)|online|latest news)\b"
)
_PLOT_REQUEST: Final = re.compile(r"(?i)\b(?:plot|chart|graph|draw|diagram|histogram)\b")
_COMPUTE_REQUEST: Final = re.compile(
    r"(?i)\b(?:comput\w+|calculat\w+|how much is|evaluate|python|run the code)\b"
)
_ASKING: Final = re.compile(
    r"(?i)\b(?:please|can you|could you|search(?: the| on the)?(?: web| internet)?|browse"
    r"(?: the web)?|look up|find out|on the (?:web|internet)|online|for|about|and|then|cite"
    r"|your sources?|it|tell me|what|which|who|how|when|where|is|are|was|the|a|an|of|with"
    r"|sources?|answer|page)\b"
)
_QUOTED: Final = re.compile(r"[\"'`“]([^\"'`“”]{2,200})[\"'`”]")
_EXPRESSION: Final = re.compile(r"[\d(][\d\s+\-*/().%^]*[\d)]")
_FUNCTION: Final = re.compile(r"(?i)\b(sin|cos|tan|exp|sqrt|log)\b")
_OPENED_MAX: Final = 1


def plausible(conversation: Conversation, offered: Container[str]) -> Act | None:
    """Return what a model would do with its hosted tools."""
    request = conversation.request
    if _REFUSED.search(request):
        return None
    if BROWSER + "search" in offered and _SEARCH_REQUEST.search(request):
        return _researching(conversation)
    runs_code = _PLOT_REQUEST.search(request) or _COMPUTE_REQUEST.search(request)
    has_run = any(output.name == PYTHON for output in conversation.new_outputs)
    if PYTHON in offered and runs_code and not has_run:
        return Act(PYTHON, code_for(request, conversation.system))
    return None


def _researching(conversation: Conversation) -> Act | None:
    outputs = [one for one in conversation.new_outputs if one.name.startswith(BROWSER)]
    if not outputs:
        return Act(BROWSER + "search", json.dumps({"query": query_for(conversation.request)}))
    shown = displays_of(outputs)
    pages = [one for one in shown if one.url]
    opened = sum(output.name == BROWSER + "open" for output in outputs)
    if shown and shown[-1].links and not pages and opened < _OPENED_MAX:
        best = shown[-1].best_link(words_of(conversation.request))
        return Act(BROWSER + "open", json.dumps({"id": best}))
    if not shown:
        return Act(FINAL, "I found nothing that I could cite.")
    return Act(FINAL, cited(pages or shown, conversation.request))


def query_for(request: str) -> str:
    if quoted := _QUOTED.search(request):
        return quoted[1]
    sentence = re.split(r"[.?!;\n]", request.strip(), maxsplit=1)[0]
    words = re.findall(r"[\w'\-]+", _ASKING.sub(" ", sentence))
    return " ".join(words) or request.strip()[:QUOTE_CHARS] or "news"


_PACKAGES: Final = re.compile(r"Packages beside the standard library: ([^.\n]*)")
_PART_OF_PYTHON: Final = "only a part of Python"
_VALUES: Final = "import math\nxs = [0.1 * step for step in range(1, 64)]\nys = [{} for x in xs]\n"
_WITH_MATPLOTLIB: Final = "import matplotlib.pyplot as plt\nplt.plot(xs, ys)\nplt.show()"
_WITH_ZLIB: Final = '''\
import struct, zlib

class Plot:
    """An image of one pixel for each value, made without a library."""
    def __init__(self, values, height=120):
        low, high = min(values), max(values)
        rows = [bytearray(b"\\xff" * len(values)) for _ in range(height)]
        for column, value in enumerate(values):
            rows[round((high - value) / ((high - low) or 1) * (height - 1))][column] = 0
        head = struct.pack(">IIBBBBB", len(values), height, 8, 0, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\\0" + bytes(row) for row in rows))
        self.png = b"\\x89PNG\\r\\n\\x1a\\n"
        for kind, data in (b"IHDR", head), (b"IDAT", pixels), (b"IEND", b""):
            check = struct.pack(">I", zlib.crc32(kind + data))
            self.png += struct.pack(">I", len(data)) + kind + data + check

    def _repr_png_(self):
        return self.png

Plot(ys)'''
_WITH_LETTERS: Final = """\
low = min(ys)
high = max(ys)
for y in ys[::3]:
    print(" " * int((y - low) / ((high - low) or 1) * 40) + "*")"""


def code_for(request: str, system: str) -> str:
    """Return Python that plots or computes what the request names.

    If the system message lists no packages, models take those that they were trained with.
    """
    if _PLOT_REQUEST.search(request):
        function = _FUNCTION.search(request)
        values = _VALUES.format(f"math.{function[1].lower()}(x)" if function else "x * x")
        packages = _PACKAGES.search(system)
        if packages is None or "matplotlib" in packages[1]:
            return values + _WITH_MATPLOTLIB
        return values + (_WITH_LETTERS if _PART_OF_PYTHON in system else _WITH_ZLIB)
    quoted = re.search(r"`([^`]+)`", request)
    if quoted:
        return f"print({quoted[1]})" if _EXPRESSION.fullmatch(quoted[1]) else quoted[1]
    expression = max(_EXPRESSION.findall(request), key=len, default="").strip()
    return f"print({expression.replace('^', '**')})" if expression else "print(sum(range(101)))"


CALLS_MAX: Final = 100
_TIMES: Final = {"once": 1, "twice": 2, "thrice": 3}
_COUNTS: Final = {"two": 2, "three": 3, "four": 4, "five": 5}
_REPEAT: Final = re.compile(r"(?i)\b(once|twice|thrice)\b|\b(two|three|four|five|\d{1,2}) times\b")
_REFUSAL: Final = re.compile(r"(?i)\b(?:don't|do not|never|without) (?:call|us(?:e|ing)|run)")
_ASKS: Final = re.compile(r"(?i)\b(?:call|use|run|invoke)\b")
_IMPERATIVE: Final = re.compile(
    r"(?i)\A(?:please\s+)?(?:add|book|calculate|check|compute|create|delete|execute|fetch|find|get"
    r"|list|look|make|open|order|read|search|send|set|show|start|tell me the|update|write)\b"
)
_WORD_CHARS_MIN: Final = 4


def planned_calls(chosen: list[Tool], times: int) -> list[Tool]:
    """Return the tools in the order of the calls."""
    return (chosen * times if len(chosen) == 1 else chosen)[:CALLS_MAX]


def tools_meant(request: str, tools: Sequence[Tool]) -> list[Tool]:
    if _REFUSAL.search(request):
        return []
    if named := _named(request, tools):
        return named
    if meant := [tool for tool in tools if _is_meant(request, tool)]:
        return meant[:1]
    if _ASKS.search(request) or (len(tools) == 1 and _IMPERATIVE.search(request)):
        return list(tools[:1])
    return []


def _named(request: str, tools: Sequence[Tool]) -> list[Tool]:
    # The whole name of the tool; in the order of the request.
    by_position = {
        match.start(): tool
        for tool in tools
        if (match := re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", request, re.IGNORECASE))
    }
    return [by_position[place] for place in sorted(by_position)]


def _is_meant(request: str, tool: Tool) -> bool:
    # A longer word of the name is enough: `weather` of `get_weather`.
    request_words = set(re.findall(r"\w+", request.casefold()))
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool.name)
    return any(word.casefold() in request_words for word in words if len(word) >= _WORD_CHARS_MIN)


def repetitions(request: str) -> int:
    match = _REPEAT.search(request)
    if match is None:
        return 1
    if match[1]:
        return _TIMES[match[1].lower()]
    word = match[2].lower()
    return _COUNTS[word] if word in _COUNTS else int(word)


_PREAMBLE_REQUEST: Final = re.compile(r"\bpreamble\b", re.IGNORECASE)
_PYTHON_OFFERED: Final = re.compile(r"^## python$", re.MULTILINE)


class ScriptWriter:
    def __init__(self, conversation: Conversation, vocabulary: Vocabulary) -> None:
        self._conversation = conversation
        self._vocabulary = vocabulary
        self._encode = vocabulary.encode
        self.parts = PartWriter(vocabulary)

    @cached_property
    def _tools(self) -> list[Tool]:
        return tools_of(self._conversation.developer)

    @cached_property
    def _tools_by_kind(self) -> dict[str, Tool]:
        browser = tools_of(self._conversation.system, BROWSER.rstrip("."))
        functions = [(CALL_PREFIX + tool.name, tool) for tool in self._tools]
        tools: dict[str, Tool] = {}
        for kind, tool in (*functions, *((BROWSER + tool.name, tool) for tool in browser)):
            tools.setdefault(kind, tool)
        return tools

    @cached_property
    def offered(self) -> list[str]:
        has_python = _PYTHON_OFFERED.search(self._conversation.system)
        return [*self._tools_by_kind, *([PYTHON] if has_python else [])]

    @cached_property
    def act(self) -> Act | None:
        if self._schema is not None or self._planned_calls:
            return None
        return plausible(self._conversation, self.offered)

    @cached_property
    def _schema(self) -> Schema | None:
        return response_schema(self._conversation.developer)

    @property
    def is_shaped(self) -> bool:
        # The prompt shows a schema for something that may be written.
        return bool(self._tools) or self._schema is not None

    @property
    def call_kinds(self) -> list[str]:
        """Return the recipients that can be called, the planned ones first."""
        due = [self.act.kind] if self.act and is_call(self.act.kind) else []
        planned = [CALL_PREFIX + tool.name for tool in self._planned_calls]
        return list(dict.fromkeys([*due, *planned, *self.offered]))

    def script(self) -> Script:
        return script_of([*self.thinking(), *self._acting()])

    def part(self, kind: str) -> Part:
        """Return the message of this kind, even if the script has none."""
        return self.parts.part_of_ids(kind, self._body(kind))

    def thinking(self) -> list[Part]:
        return [self.part(ANALYSIS)]

    def _acting(self) -> list[Part]:
        if self.act is not None:
            return [self.part(self.act.kind)]
        done = len(self._conversation.new_outputs)
        if done < len(self._planned_calls):
            return self._calling(self._planned_calls[done])
        return [self.part(FINAL)]

    @cached_property
    def _planned_calls(self) -> list[Tool]:
        request = self._conversation.request
        return planned_calls(tools_meant(request, self._tools), repetitions(request))

    def _calling(self, tool: Tool) -> list[Part]:
        call = self.part(CALL_PREFIX + tool.name)
        if not _PREAMBLE_REQUEST.search(self._conversation.request):
            return [call]
        return [self.parts.part(COMMENTARY, preamble(tool)), call]

    def _body(self, kind: str) -> list[int]:
        if kind == FINAL:
            return self._answer_ids()
        if kind == ANALYSIS:
            return self._encode(thoughts(self._conversation))
        if kind == COMMENTARY:
            return self._encode("One moment, please.")
        return self._encode(self._arguments(kind))

    def _arguments(self, kind: str) -> str:
        if self.act is not None and self.act.kind == kind:
            return self.act.text
        request = self._conversation.request
        if kind == PYTHON:
            return code_for(request, self._conversation.system)
        if kind == BROWSER + "search":
            return json.dumps({"query": query_for(request)}, ensure_ascii=False)
        tool = self._tools_by_kind.get(kind)
        value = make_arguments(tool.parameters if tool else {}, request)
        return json.dumps(value, ensure_ascii=False)

    def _answer_ids(self) -> list[int]:
        if self.act is not None and self.act.kind == FINAL:
            return self._encode(self.act.text)
        return self._encode(answer(self._conversation))
