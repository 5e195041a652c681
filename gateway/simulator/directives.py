"""Directives in the user's text: `[[sim key=value key=value]]`, any number of them.

| key | value | effect |
|---|---|---|
| `say` | text to the end of the directive | the answer |
| `arguments` | text to the end of the directive | the arguments of every call |
| `steps` | to the end of the directive | one step a turn; see `steps` |
| `think` | `none` or a number of ids | length of the analysis |
| `tokens` | number of ids | length of the answer |
| `call` | a tool's name, or `none` | call it, or call nothing |
| `calls` | number | how many calls, one after the other |
| `tokens_per_s`, `ids_per_event`, `first_token_delay_s` | number | pace of this stream |
| `status` | HTTP status | answer it instead of generating |
| `first_event_error` | HTTP status | 200, and the error as the first event |
| `slow_accept_s` | seconds | wait before the response's head |
| `die_after` | n | after n ids of this request the connection is cut, as by kill -9 |
| `stall_after` | n | after n ids nothing more comes, and the connection stays open |
| `abort_after` | n | the n-th id carries `finish_reason: "abort"` |
| `error_after` | n | after n ids an error event 500, as when the engine dies |
| `end_after` | n | after n ids a proper end of the body without a finish reason |
| `drift` | `prose`, `types`, `truncated`, `extra`, `refusal` | JSON that is not as asked for |
| `attack` | see below | what no well-meant script says |
| `grammar_ids` | `none` or n | grammars bind not at all, or only the first n ids of a body |
| `times` | n | faults, drift and attack only for the first n requests of this prompt |
| `only` | instance name | faults, drift and attack only at this instance |

Drifts: words instead of JSON, values of wrong types, JSON that breaks off, text behind it, or a
refusal instead of an answer or a call.

Attacks: `call:NAME` calls what the request may not even have; `twice` makes two calls in one turn;
`analysis_call` calls from the analysis channel; `markers` spells Harmony's markers in its text and
`marker_ids` says their ids in it; `header` says nonsense in its header, `long_header` hundreds of
ids of it; `endless` thinks and never ends; `loop:P` and `think_loop:P` repeat the same P ids (1 to
8) in the answer or the reasoning for ever; `silent` only thinks; `mute` thinks, and leaves answers
and calls empty.

Attacks on tools that a gateway hosts, at the step that is due: `hosted_bad_json`, `hosted_no_args`
(an empty body), `hosted_functions_prefix` and `hosted_commentary` in its header, `hosted_two_calls`
in one turn, `hosted_wrapped_code` (JSON around code), `hosted_huge_args`;
`hosted_not_offered:RECIPIENT` calls that first. Of answers that cite: `marker_split` says each
character of a marker in an event of its own, `marker_unknown` cites what nobody was shown,
`marker_open_at_end` is cut within a marker. `tool_result_forged` writes a tool's message itself.

Where a grammar is in force, the engine holds drift and attacks to it, as it would a model. So
one that drifts heeds no schema unless a grammar binds it, also in the middle of JSON.

A plan of an instance says what goes wrong with every request that does not say so itself; in it
`health=503` makes `GET /health` answer that as well.
A directive with an unknown key or a bad value is refused, so that no test passes by a typing error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from gateway.simulator.errors import bad_request
from gateway.simulator.steps import read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.simulator.steps import Step

_DIRECTIVE: Final = re.compile(r"\[\[sim\s+(.*?)\]\]", re.DOTALL)
_TO_THE_END: Final = re.compile(r"(?:^|\s)(say|arguments|steps)=(.*)\Z", re.DOTALL)
_NUMBER_MAX: Final = 10_000_000
DRIFTS: Final = ("prose", "types", "truncated", "extra", "refusal")
_ATTACK: Final = re.compile(
    r"call:[^\s:]+|twice|analysis_call|markers|marker_ids|header|long_header|endless|silent|mute"
    r"|(?:think_)?loop:[1-8]|hosted_(?:bad_json|no_args|functions_prefix|commentary|two_calls"
    r"|wrapped_code|huge_args|not_offered:[^\s:]+)|marker_(?:split|unknown|open_at_end)"
    r"|tool_result_forged"
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """Demands of the user's text on the script. None: the script decides."""

    say: str | None = None
    arguments: str | None = None
    think: int | None = None
    tokens: int | None = None
    call: str | None = None
    calls: int | None = None
    steps: tuple[Step, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Demands of the user's text on the stream's speed. None: the setting of the instance."""

    tokens_per_s: float | None = None
    ids_per_event: int | None = None
    first_token_delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults to simulate. The `_after` counts are ids of one request, not of the turn."""

    status: int | None = None
    first_event_error: int | None = None
    slow_accept_s: float | None = None
    die_after: int | None = None
    stall_after: int | None = None
    abort_after: int | None = None
    error_after: int | None = None
    end_after: int | None = None
    times: int | None = None
    only: str | None = None
    health: int | None = None

    @property
    def breakage(self) -> tuple[int, str] | None:
        """Return after how many ids a request breaks off, and how (`die`, `stall`, ...)."""
        marks = {
            "die": self.die_after,
            "stall": self.stall_after,
            "abort": self.abort_after,
            "error": self.error_after,
            "end": self.end_after,
        }
        return min(((at, how) for how, at in marks.items() if at is not None), default=None)

    def __bool__(self) -> bool:
        others = (self.status, self.first_event_error, self.slow_accept_s)
        return self.breakage is not None or any(value is not None for value in others)


NOT_HELD: Final = -1
"""The `Malformed.grammar_ids` of an engine that ignores grammars."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Misbehaviour of the model. Grammars are ignored from id `grammar_ids` of a body on."""

    drift: str | None = None
    attack: str | None = None
    grammar_ids: int | None = None

    def __bool__(self) -> bool:
        return self != _WELL_BEHAVED


_WELL_BEHAVED: Final = Malformed()


@dataclass(frozen=True, slots=True)
class Directives:
    """All directives of one text."""

    wishes: Wishes = Wishes()
    pace: Pace = Pace()
    faults: Faults = Faults()
    malformed: Malformed = Malformed()


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number <= _NUMBER_MAX:
        raise ValueError(text)
    return number


def _positive(text: str) -> int:
    return _count(text) or _count("-1")


def _amount(text: str) -> float:
    number = float(text)
    if not 0 <= number <= _NUMBER_MAX:
        raise ValueError(text)
    return number


def _error_status(text: str) -> int:
    status = int(text)
    if not 400 <= status <= 599:
        raise ValueError(text)
    return status


def _ids_or_none(text: str) -> int:
    return 0 if text == "none" else _count(text)


def _drift(text: str) -> str:
    if text not in DRIFTS:
        raise ValueError(text)
    return text


def _attack(text: str) -> str:
    if not _ATTACK.fullmatch(text):
        raise ValueError(text)
    return text


def _grammar_ids(text: str) -> int:
    return NOT_HELD if text == "none" else _count(text)


_READ: Final[Mapping[str, Callable[[str], object]]] = {
    "say": str,
    "arguments": str,
    "steps": read_steps,
    "think": _ids_or_none,
    "tokens": _count,
    "call": str,
    "calls": _count,
    "tokens_per_s": _amount,
    "ids_per_event": _positive,
    "first_token_delay_s": _amount,
    "status": _error_status,
    "first_event_error": _error_status,
    "slow_accept_s": _amount,
    "die_after": _count,
    "stall_after": _count,
    "abort_after": _count,
    "error_after": _count,
    "end_after": _count,
    "health": _error_status,
    "drift": _drift,
    "attack": _attack,
    "grammar_ids": _grammar_ids,
    "times": _count,
    "only": str,
}


def parse(text: str) -> Directives:
    """Return the directives in a user's text; later ones replace earlier ones.

    Raises `SimulatedError` (400) for an invalid key or value.
    """
    values: dict[str, Any] = {}
    for match in _DIRECTIVE.finditer(text):
        values |= _values(match[1])
    return _build(values)


def parse_plan(plan: str) -> Directives:
    """Parse a fault plan, which is written without brackets.

    Raises `SimulatedError` as `parse` does, and for wishes and a pace: they belong to a request or
    to the options.
    """
    directives = _build(_values(plan))
    if directives != Directives(faults=directives.faults, malformed=directives.malformed):
        raise bad_request(f"The simulator's plan is not one of faults alone: {plan!r}.")
    return directives


def without_directives(text: str) -> str:
    return _DIRECTIVE.sub("", text).strip()


def _values(directive: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    words = []
    if found := _TO_THE_END.search(directive):
        words.append(f"{found[1]}={found[2]}")
        directive = directive[: found.start()]
    for word in (*words, *directive.split()):
        key, _, value = word.partition("=")
        try:
            values[key] = _READ[key](value)
        except (KeyError, ValueError) as error:
            raise bad_request(f"The simulator does not know the directive {word!r}.") from error
    return values


def _build(values: dict[str, Any]) -> Directives:
    if values.get("attack") == "marker_split":
        values = {"ids_per_event": 1} | values
    return Directives(
        wishes=Wishes(**_of(Wishes, values)),
        pace=Pace(**_of(Pace, values)),
        faults=Faults(**_of(Faults, values)),
        malformed=Malformed(**_of(Malformed, values)),
    )


def _of(kind: type[Wishes | Pace | Faults | Malformed], values: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in values.items() if key in names}
