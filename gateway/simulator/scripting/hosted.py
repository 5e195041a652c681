"""Use of the tools that a gateway hosts by the scripted model: the browser, Python, MCP.

The model follows the steps of directives; without them it searches, reads and cites, or computes
and plots, where the user asks for that and the system message offers it.

A prompt shows what `browser.search`, `open` and `find` returned as displays: `[3] Title
(https://host/path)`, the line `**viewing lines [40 - 61] of 180**`, an empty line, and then
numbered ones: `L40: Some text, and 【7†a link】 in it.`
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.simulator.directives import read_step
from gateway.simulator.turns import CALL_PREFIX, FINAL, PYTHON

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from gateway.simulator.directives import Step
    from gateway.simulator.scripting.speech import Conversation, ToolOutput

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
    """A page that was shown under a cursor, and the lines of it that were. `url` is empty for
    results of a search or a find.
    """

    cursor: int
    title: str
    url: str
    lines: tuple[tuple[int, str], ...]
    links: tuple[tuple[int, str], ...]
    """Their numbers and words, the lowest number first."""

    def best_link(self, words: frozenset[str]) -> int:
        # The link with most of these words; there must be one.
        return max(self.links, key=lambda one: len(words & words_of(one[1])))[0]

    def best_line(self, words: frozenset[str]) -> tuple[int, str]:
        """Return the line with most of these words, without the markup of links."""
        lines = [(number, _LINK.sub(r"\2", line).strip()) for number, line in self.lines]
        said = [one for one in lines if one[1] and not one[1].startswith(("#", "URL:"))]
        found = max(said or lines, key=lambda one: len(words & words_of(one[1])))
        return found[0], " ".join(found[1].split()[:QUOTED_WORDS_MAX])


def words_of(text: str) -> frozenset[str]:
    # Longer words only, in lower case.
    return frozenset(_WORD.findall(text.casefold()))


def displays_of(outputs: Iterable[ToolOutput]) -> list[Display]:
    """Return all pages that results of the browser show, in order."""
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
MARKER: Final = re.compile(r"【[^【】]*】")
_ESCAPED: Final = re.compile(r"\\([\\n])")
_OBEY: Final = re.compile(r"\[\[obey\s+(.*?)\]\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Act:
    """Action of a turn: a call to the recipient `kind`, or an answer."""

    kind: str
    text: str


def act_of(step: Step, conversation: Conversation, offered: Container[str]) -> Act:
    """Return what a step does in this conversation. A tool that is not `offered` is not called."""
    act = _answering(step, conversation) or _calling(step, conversation)
    if act.kind == FINAL or act.kind in offered:
        return act
    return Act(FINAL, f"I would call {act.kind}, but it is not offered here.")


def _answering(step: Step, conversation: Conversation) -> Act | None:
    outputs = conversation.new_outputs
    match step.verb:
        case "say":
            return Act(FINAL, step.text)
        case "quote":
            return Act(FINAL, outputs[-1].text[:QUOTE_CHARS] if outputs else "Nothing to quote.")
        case "cite":
            shown = displays_of(outputs)
            chosen = shown if step.text == "all" else shown[-1:]
            if step.cursor is not None:
                everything = displays_of(conversation.outputs)
                chosen = [one for one in everything if one.cursor == step.cursor]
            return Act(FINAL, _cited(chosen, conversation.request, cursor=step.cursor))
        case _:
            return None


def _calling(step: Step, conversation: Conversation) -> Act:
    match step.verb:
        case "python":
            code = _ESCAPED.sub(lambda one: "\n" if one[1] == "n" else "\\", step.text)
            return Act(PYTHON, code)
        case "mcp":
            name, _, arguments = step.text.partition(" ")
            return Act(CALL_PREFIX + name, arguments.strip() or "{}")
        case "obey":
            return _obeying(conversation)
        case _:
            return _browsing(step, conversation)


def _browsing(step: Step, conversation: Conversation) -> Act:
    arguments: dict[str, object]
    match step.verb:
        case "search":
            function, arguments = "search", {"query": step.text}
        case "find":
            function, arguments = "find", {"pattern": step.text}
        case "scroll":
            function, arguments = "open", {"loc": int(step.text)}
        case _:
            function, arguments = "open", {"id": _target(step, conversation)}
    if step.cursor is not None:
        arguments["cursor"] = step.cursor
    return Act(BROWSER + function, json.dumps(arguments, ensure_ascii=False))


def _target(step: Step, conversation: Conversation) -> int | str:
    if step.text == "first":
        shown = displays_of(conversation.outputs)[-1:]
        return next((number for one in shown for number, _ in one.links), 0)
    return int(step.text) if step.text.isdecimal() else step.text


def _obeying(conversation: Conversation) -> Act:
    # The last result is no directive of the user: only `obey` follows its instructions.
    outputs = conversation.new_outputs[-1:]
    told = next((match[1] for one in outputs if (match := _OBEY.search(one.text))), None)
    if told is None:
        return Act(FINAL, "Nobody told me to do anything.")
    try:
        step = read_step(told)
    except ValueError:
        return Act(FINAL, f"I do not know how to {told}.")
    if step.verb in {"obey", "again"}:
        return Act(FINAL, f"I do not know how to {told}.")
    return _answering(step, conversation) or _calling(step, conversation)


def _cited(shown: list[Display], request: str, *, cursor: int | None = None) -> str:
    # A cursor that the prompt no longer shows is cited by its first line.
    if not shown:
        return "Nothing to cite." if cursor is None else f"As I read before 【{cursor}†L0】."
    return " ".join(_citation(one, words_of(request)) for one in shown)


def _citation(display: Display, words: frozenset[str]) -> str:
    number, said = display.best_line(words)
    last = min(number + 1, display.lines[-1][0])
    place = f"L{number}-L{last}" if last > number else f"L{number}"
    return f"{display.title or 'The page'} says: {said} 【{display.cursor}†{place}】."


_REFUSED: Final = re.compile(
    r"(?i)\b(?:don't|do not|never|without) (?:search|brows|us(?:e|ing)|run)"
)
_SEARCH_ASKED: Final = re.compile(
    r"(?i)\b(?:search|browse|look up|find out|cite|on the (?:web|internet)|online|latest news)\b"
)
_PLOT_ASKED: Final = re.compile(r"(?i)\b(?:plot|chart|graph|draw|diagram|histogram)\b")
_COMPUTE_ASKED: Final = re.compile(
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
    """Return what a model would do with its tools here; None if they have nothing to do."""
    request = conversation.request
    if _REFUSED.search(request):
        return None
    if BROWSER + "search" in offered and _SEARCH_ASKED.search(request):
        return _researching(conversation)
    is_asked = _PLOT_ASKED.search(request) or _COMPUTE_ASKED.search(request)
    if PYTHON in offered and is_asked and not _of_python(conversation.new_outputs):
        return Act(PYTHON, code_for(request, conversation.system))
    return None


def _of_python(outputs: list[ToolOutput]) -> bool:
    return any(output.name == PYTHON for output in outputs)


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
    return Act(FINAL, _cited(pages or shown, conversation.request))


def query_for(request: str) -> str:
    """Return a search query: the words in quotes, or those of the first sentence that matter."""
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

    It uses the packages that the system message lists; if it lists none, those that models were
    trained with.
    """
    if _PLOT_ASKED.search(request):
        function = _FUNCTION.search(request)
        values = _VALUES.format(f"math.{function[1].lower()}(x)" if function else "x * x")
        packages = _PACKAGES.search(system)
        if packages is None or "matplotlib" in packages[1]:
            return values + _WITH_MATPLOTLIB
        return values + (_WITH_LETTERS if _PART_OF_PYTHON in system else _WITH_ZLIB)
    quoted = re.search(r"`([^`]+)`", request)
    if quoted:
        return f"print({quoted[1]})" if _EXPRESSION.fullmatch(quoted[1]) else quoted[1]
    found = max(_EXPRESSION.findall(request), key=len, default="").strip()
    return f"print({found.replace('^', '**')})" if found else "print(sum(range(101)))"
