"""Turns of chat formats, right, mutated and random, and why two parsers may differ on one."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.generation import FinishReason, SegmentKind, SegmentStarted, SegmentText
from gateway.models.chat.call_syntax import Mark, Syntax
from gateway.models.chat.chat_parser import ChatParser
from gateway.models.chat.families import CALLS, REASONING
from tests.fakes.chat_vocabulary import ids_of

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from gateway.models.chat.tokenizer import Vocabulary

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "rows": {"type": "array"},
        "text": {"type": "string"},
        "maybe": {"type": ["null", "string"]},
    },
}
NAMES: Final = ("f", "get_weather")
RULES: Final = OutputRules(
    tools={n: ToolRule(n, SegmentKind.FUNCTION_CALL, n, declared=SCHEMA) for n in NAMES},
    allowed=frozenset(NAMES),
)
TOOLS: Final = [{"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in NAMES]


@dataclass(frozen=True)
class Family:
    """A syntax, and vLLM's parsers of it. `opened`: to vLLM a turn begins within a thought."""

    reasoning: str
    calls: str
    their_reasoning: str | None
    their_calls: str
    opened: bool = True
    spelled: tuple[str, ...] = ()
    """Markers that are no id in this vocabulary."""
    thinking: bool = True

    @property
    def syntax(self) -> Syntax:
        return Syntax(REASONING[self.reasoning], CALLS[self.calls])

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(one for one in self.syntax.markers if one not in self.spelled)


_TAGS = ("<function=", "<parameter=", "</parameter>", "</function>")
FAMILIES: Final = {
    "hermes": Family("think", "hermes", "qwen3", "hermes"),
    "hermes, not thinking": Family("none", "hermes", None, "hermes", opened=False, thinking=False),
    "hermes, spelled": Family(
        "think", "hermes", "deepseek_r1", "hermes", spelled=("<tool_call>", "</tool_call>")
    ),
    "qwen3_coder": Family("none", "qwen3_coder", None, "qwen3_coder", opened=False, spelled=_TAGS),
    "qwen3.5": Family("think", "qwen3_coder", "qwen3", "qwen3_coder", spelled=_TAGS),
    "glm": Family("think", "glm", "glm45", "glm45"),
    "deepseek_v3": Family("think", "deepseek_v3", "deepseek_r1", "deepseek_v3"),
    "deepseek_v31": Family("think", "deepseek_v31", "deepseek_v3", "deepseek_v31"),
    "mistral": Family(
        "mistral", "mistral", "mistral", "mistral", opened=False, spelled=("[/TOOL_CALLS]",)
    ),
    "mistral_v3": Family(
        *("none", "mistral_v3", None, "mistral"),
        opened=False,
        spelled=("[ARGS]", "[CALL_ID]", "[/TOOL_CALLS]"),
    ),
    "llama3_json": Family("none", "llama3_json", None, "llama3_json", opened=False),
}

Answer = tuple[str, str, list[tuple[str, str]]]


# Turns.

WORDS = ("Hi", "I look.", " the", "a < b", "\u00e9\U0001f496", "{", "\n", "5", '"x"', "```", "hm")
VALUES: dict[str, tuple[Any, ...]] = {
    "count": (0, -7, 12345678901234567890),
    "ratio": (0.5, 3, -1e20),
    "flag": (True, False),
    "rows": ([], [1, "a"], [{"b": None}]),
    "text": ("", "Paris", "a\nb", 'q"\\', "5", "\u00e9\U0001f496", " x "),
    "maybe": (None, "no"),
    "other": ("free", "true"),
}


class Turns:
    """Makes turns of one family, always the same ones for a seed."""

    def __init__(self, family: Family, known: Vocabulary, dice: random.Random) -> None:
        self._family = family
        self._known = known
        self._dice = dice

    def new(self) -> list[int]:
        kind = self._dice.random()
        if kind < 0.2:
            return self._right()
        if kind < 0.75:
            return self._mutated(self._right())
        return self._random()

    def _right(self) -> list[int]:
        dice, thought = self._dice, self._family.syntax.reasoning
        parts: list[Mark | str] = []
        if thought is not None and self._family.opened:
            parts += ("\n", self._words(), "\n", Mark(thought.closing), "\n\n")
        elif thought is not None and dice.random() < 0.5:
            parts += (Mark(thought.opening), self._words(), Mark(thought.closing))
        is_bare = self._family.syntax.calls is not None and self._family.syntax.calls.is_bare
        count = dice.choice((0, 1, 1, 2, 3))
        if count == 0 or not is_bare:
            parts.append(self._words() if dice.random() < 0.7 else "")
        if self._family.syntax.calls is not None and count:
            parts += ("\n" if dice.random() < 0.5 and not is_bare else "",)
            parts += self._family.syntax.calls.written([self._call() for _ in range(count)])
        return ids_of(self._known, tuple(part for part in parts if part))

    def _words(self) -> str:
        return "".join(self._dice.choices(WORDS, k=self._dice.randint(1, 4)))

    def _call(self) -> tuple[str, str]:
        dice = self._dice
        keys = dice.sample(sorted(VALUES), dice.randint(0, 3))
        arguments = {key: dice.choice(VALUES[key]) for key in keys}
        return dice.choice(NAMES), json.dumps(arguments, ensure_ascii=False)

    def _mutated(self, ids: list[int]) -> list[int]:
        dice = self._dice
        for _ in range(dice.randint(1, 3)):
            at = dice.randint(0, len(ids))
            match dice.randint(0, 5):
                case 0:
                    del ids[at : at + dice.randint(1, 3)]
                case 1:
                    ids[at:at] = ids[at : at + dice.randint(1, 6)]
                case 2:
                    ids[at:at] = [self._token()]
                case 3:
                    ids = ids[:at]
                case 4:
                    ids[at : at + 1] = [self._token()]
                case _:
                    ids = [*ids[:at], *self._right()[dice.randint(0, 20) :]]
        return ids

    def _random(self) -> list[int]:
        marks = self._family.syntax.markers
        texts = (*WORDS, *NAMES, *marks, *marks, '{"name": "f", "arguments": {}}', "}", "\n", "]")
        some = self._dice.choices(texts, k=self._dice.randint(1, 10))
        return [token for text in some for token in ids_of(self._known, (Mark(text),))]

    def _token(self) -> int:
        if self._dice.random() < 0.4:
            marks = [self._known.special(text) for text in self._family.added]
            return self._dice.choice([one for one in marks if one is not None] or [40])
        token = self._dice.randint(0, self._known.size - 1)
        return token if self._known.piece(token) else 65


# Answers.


@dataclass
class Read:
    """What the parser here makes of a turn, and what of it may be read in another way."""

    answer: Answer
    reasons: set[str] = field(default_factory=set)


def read_here(family: Family, known: Vocabulary, ids: Sequence[int]) -> Read:
    parser, thought = ChatParser(known, family.syntax, RULES), family.syntax.reasoning
    if thought is not None and family.opened:
        parser.feed(ids_of(known, (Mark(thought.opening),)))
    events = [*parser.feed(ids), *parser.finish(FinishReason.STOP)]
    said: list[list[str]] = []
    for event in events:
        if isinstance(event, SegmentStarted):
            said.append([event.kind.value, event.name, ""])
        elif isinstance(event, SegmentText):
            said[-1][2] += event.text
    kinds = [kind for kind, _, _ in said]
    thoughts = [text for kind, _, text in said if kind == "reasoning"]
    texts = [text for kind, _, text in said if kind == "final"]
    calls = [(name, text) for kind, name, text in said if kind == "function_call"]
    reasons = set(parser.recoveries) - {"no_visible_output"}
    if "function_call" in kinds and "final" in kinds[kinds.index("function_call") :]:
        reasons.add("text_behind_call")
    if family.calls == "llama3_json" and "{" in "".join(texts):
        reasons.add("call_in_text")
    if family.calls == "llama3_json" and texts and calls:
        reasons.add("text_before_call")
    if family.calls == "glm" and any(_has_untyped(text) for _, text in calls):
        reasons.add("untyped_value")
    written = (*thoughts, *texts, *(text for _, text in calls))
    if any(mark in text for text in written for mark in family.added):
        reasons.add("quoted_marker")
    answer = ("".join(thoughts), "".join(texts), calls)
    return Read(answer, reasons | set(reasons_in(family, known, ids)))


def reasons_in(family: Family, known: Vocabulary, ids: Sequence[int]) -> Iterator[str]:
    """What of the ids themselves may be read in another way."""
    thought = family.syntax.reasoning
    if thought is not None:
        opening, closing = known.special(thought.opening), known.special(thought.closing)
        ends = [at for at, token in enumerate(ids) if token == closing]
        if opening in ids[ends[0] if ends and family.opened else 1 :]:
            yield "second_thought"
    spelled = known.decode([token for token in ids if known.special_text(token) is None])
    if any(mark in spelled for mark in family.added):
        yield "spelled_marker"
    if family.calls.startswith("deepseek") and re.search(_LINE_BREAKS[family.calls], spelled):
        yield "line_break"
    if re.search(r"[\x00-\x08\x0b-\x1f]", spelled):
        yield "control_character"
    decoded = known.decode(list(ids))
    yield from (reason for reason, pattern in IN_DECODED.items() if re.search(pattern, decoded))
    if re.search(_SPACED_NAME, spelled):
        yield "spaced_name"


IN_DECODED: Final = {
    "call_id": r"\[CALL_ID\]",
    "text_behind_call": (
        r"calls\u2581begin\uff5c>\s*<\uff5ctool\u2581calls\u2581end\uff5c>\s*[^\s<]"
    ),
    "second_list": r"(?s)\[TOOL_CALLS\]\s*\[.*\[TOOL_CALLS\]",
    "half_character": "\ufffd",
}
_SPACED_NAME: Final = r"<(?:parameter|function)=(?:\s[^>]*|[^>]*\s)>"
_LINE_BREAKS: Final = {"deepseek_v3": r"```json\n[^`]*\n(?!```)", "deepseek_v31": r"\n\{"}
"""In arguments, and in front of them: they are no part of what vLLM looks for."""


def _has_untyped(arguments: str) -> bool:
    """A value that is no text, and whose type no schema names."""
    value = _value(arguments)
    found = value.items() if isinstance(value, dict) else ()
    return any(key not in SCHEMA["properties"] and not isinstance(one, str) for key, one in found)


def same(ours: Answer, theirs: Any) -> bool:
    if isinstance(theirs, str):
        return False
    reasoning, content, calls = theirs
    if ours[0].strip() != (reasoning or "").strip() or ours[1].strip() != (content or "").strip():
        return False
    named = [name for name, _ in calls] == [name for name, _ in ours[2]]
    pairs = zip(ours[2], calls, strict=False)
    return named and all(_value(mine) == _value(other) for (_, mine), (_, other) in pairs)


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments, strict=False)
    except ValueError:
        return arguments.strip()


@dataclass
class Comparison:
    """What became of many turns. `unexplained` are those read differently without a reason."""

    told: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    def add(self, name: str, known: Vocabulary, ids: Sequence[int], answers: Sequence[Any]) -> None:
        """Note whether one of vLLM's answers (plain, streamed) is ours, or why none is."""
        read = read_here(FAMILIES[name], known, ids)
        if same(read.answer, answers[0]):
            self.told[f"{name}: equal"] += 1
            return
        if any(same(read.answer, one) for one in answers[1:]):
            self.told[f"{name}: equal to what it streams"] += 1
            return
        for reason in sorted(read.reasons):
            self.told[f"{name}: differs, {reason}"] += 1
        if not read.reasons:
            text = "".join(
                known.special_text(token) or known.piece(token).decode("utf-8", "replace")
                for token in ids
            )
            told = f"{name}\n  {text!r}\n  here {read.answer}\n  vLLM {answers}"
            self.unexplained.append(told)

    def check(self) -> None:
        """Show the counts, and fail for what has no reason."""
        equal = sum(count for row, count in self.told.items() if ": equal" in row)
        print(f"\n{equal:7} read alike")
        for row, count in sorted(self.told.items()):
            print(f"{count:7} {row}")
        shown = "\n".join(self.unexplained[:40])
        assert not self.unexplained, f"{len(self.unexplained)} without a reason:\n{shown}"
