r"""Steps of the scripted model, one a turn: the directive `steps=`, which goes on to its end.

Steps, as in `steps=A; B; C`:

| step | effect |
|---|---|
| `search QUERY` | a search |
| `open N`, `open URL`, `open first` | a link, a URL, the lowest link of the last page |
| `scroll LINE`, `find PATTERN` | another place of a page, a text in it |
| `python CODE` | Python code; `\n` is a new line, two backslashes are one |
| `mcp NAME ARGUMENTS` | a call of `functions.NAME`; the arguments are written as they are |
| `quote` | answer with the first characters of the last result |
| `cite`, `cite all` | answer and cite lines of the last page shown, or of each |
| `say TEXT` | answer so |
| `again N` | the step before, N times more |
| `obey` | do the step that the last result tells of, as `[[obey STEP]]` |

`open@3 1`, `find@3 words`, `scroll@3 40` and `cite@3` mean the page of cursor 3. A semicolon ends a
step only before a word that begins one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.simulator.script_writer import BROWSER, QUOTE_CHARS, Act, cited, displays_of
from gateway.simulator.scripted_turns import CALL_PREFIX, FINAL, PYTHON

if TYPE_CHECKING:
    from collections.abc import Container

    from gateway.simulator.script_writer import Conversation

STEPS_MAX: Final = 1000
_BARE: Final = ("quote", "obey")
_WITH_TEXT: Final = ("search", "open", "scroll", "find", "python", "mcp", "say", "again")
_VERBS: Final = "|".join((*_BARE, *_WITH_TEXT, "cite"))
_BETWEEN: Final = re.compile(rf";\s*(?=(?:{_VERBS})(?:@\d+)?(?:\s|;|\Z))")
_STEP: Final = re.compile(rf"({_VERBS})(?:@(\d{{1,9}}))?(?:\s+(.*))?", re.DOTALL)
_MCP: Final = re.compile(r"\S+(?:\s+.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """Step of a directive. `text` is all behind its verb; `cursor` that of the page it is about."""

    verb: str
    text: str = ""
    cursor: int | None = None


def read_steps(text: str) -> tuple[Step, ...]:
    """Return the steps in order, with repetitions written out. Raises `ValueError`."""
    steps: list[Step] = []
    for piece in _BETWEEN.split(text.strip().removesuffix(";")):
        step = read_step(piece)
        steps += steps[-1:] * int(step.text) if step.verb == "again" else [step]
        if not 0 < len(steps) <= STEPS_MAX:
            raise ValueError(text)
    return tuple(steps)


def read_step(text: str) -> Step:
    """Return one step. Raises `ValueError` for invalid text."""
    match = _STEP.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    step = Step(match[1], (match[3] or "").strip(), int(match[2]) if match[2] else None)
    if not _is_sensible(step):
        raise ValueError(text)
    return step


def _is_sensible(step: Step) -> bool:
    match step.verb:
        case "cite":
            return step.text in {"", "all"}
        case "quote" | "obey":
            return not step.text
        case "scroll" | "again":
            return step.text.isdecimal() and int(step.text) <= STEPS_MAX**2
        case _:
            return bool(step.text)


_ESCAPED: Final = re.compile(r"\\([\\n])")
_OBEY: Final = re.compile(r"\[\[obey\s+(.*?)\]\]", re.DOTALL)


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
            return Act(FINAL, _citing(step, conversation))
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


def _citing(step: Step, conversation: Conversation) -> str:
    # A cursor that the prompt no longer shows is cited by its first line.
    shown = displays_of(conversation.new_outputs)
    chosen = shown if step.text == "all" else shown[-1:]
    if step.cursor is not None:
        everything = displays_of(conversation.outputs)
        chosen = [one for one in everything if one.cursor == step.cursor]
        if not chosen:
            return f"As I read before 【{step.cursor}†L0】."
    return cited(chosen, conversation.request) or "Nothing to cite."
