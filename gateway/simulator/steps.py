r"""Steps of a script with tools, `steps=A; B; C`: what the model does, one step a turn.

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

import re
from dataclasses import dataclass
from typing import Final

STEPS_MAX: Final = 1000
_BARE: Final = ("quote", "obey")
_WITH_TEXT: Final = ("search", "open", "scroll", "find", "python", "mcp", "say", "again")
_VERBS: Final = "|".join((*_BARE, *_WITH_TEXT, "cite"))
_BETWEEN: Final = re.compile(rf";\s*(?=(?:{_VERBS})(?:@\d+)?(?:\s|;|\Z))")
_STEP: Final = re.compile(rf"({_VERBS})(?:@(\d{{1,9}}))?(?:\s+(.*))?", re.DOTALL)
_MCP: Final = re.compile(r"\S+(?:\s+.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `text` is all behind its verb; `cursor` that of the page it is about."""

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
