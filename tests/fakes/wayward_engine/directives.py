r"""Directives in the user's text: `[[sim key=value key=value]]`, any number of them.

| key | value | effect |
|---|---|---|
| `say` | text to the end of the directive | the answer |
| `arguments` | text to the end of the directive | the arguments of every call |
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
| `times` | n | faults only for the first n requests of this prompt |
| `only` | instance name | faults only at this instance |

A plan of an instance says what goes wrong with every request that does not say so itself; in it
`health=503` makes `GET /health` answer that as well, and `health_delay_s=9` answer that late.
A directive with an unknown key or a bad value is refused, so that no test passes by a typing error.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gateway.cache import LruCache
from gateway.simulator.completion_wire import bad_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from _typeshed import DataclassInstance

_DIRECTIVE: Final = re.compile(r"\[\[sim\s+(.*?)\]\]", re.DOTALL)
_NUMBER_MAX: Final = 10_000_000


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


def _read(reader: Callable[[str], object]) -> Any:
    # A key of directives, and the function that reads its value.
    return field(default=None, metadata={"read": reader})


@dataclass(frozen=True, slots=True)
class Wishes:
    """Demands of the user's text on the script. None: the script decides."""

    say: str | None = _read(str)
    arguments: str | None = _read(str)
    think: int | None = _read(_ids_or_none)
    tokens: int | None = _read(_count)
    call: str | None = _read(str)
    calls: int | None = _read(_count)


@dataclass(frozen=True, slots=True)
class Pace:
    """Demands of the user's text on the stream's speed. None: the setting of the instance."""

    tokens_per_s: float | None = _read(_amount)
    ids_per_event: int | None = _read(_positive)
    first_token_delay_s: float | None = _read(_amount)


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults to simulate. The `_after` counts are ids of one request, not of the turn."""

    status: int | None = _read(_error_status)
    first_event_error: int | None = _read(_error_status)
    slow_accept_s: float | None = _read(_amount)
    die_after: int | None = _read(_count)
    stall_after: int | None = _read(_count)
    abort_after: int | None = _read(_count)
    error_after: int | None = _read(_count)
    end_after: int | None = _read(_count)
    times: int | None = _read(_count)
    only: str | None = _read(str)
    health: int | None = _read(_error_status)
    health_delay_s: float | None = _read(_amount)

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


@dataclass(frozen=True, slots=True)
class Directives:
    """All directives of one text."""

    wishes: Wishes = Wishes()
    pace: Pace = Pace()
    faults: Faults = Faults()


class Syntax:
    """The keys of directives, by the function that reads the value of each."""

    readers: ClassVar[Mapping[str, Callable[[str], object]]] = {
        one.name: one.metadata["read"] for kind in (Wishes, Pace, Faults) for one in fields(kind)
    }
    long_keys: ClassVar[tuple[str, ...]] = ("say", "arguments")
    """Keys whose values go on to the end of the directive."""

    def parse(self, text: str) -> Directives:
        """Return the directives in a user's text; later ones replace earlier ones.

        Raises `SimulatedError` (400) for an invalid key or value.
        """
        values: dict[str, Any] = {}
        for match in _DIRECTIVE.finditer(text):
            values |= self._values(match[1])
        return self.directives(values)

    def parse_plan(self, plan: str) -> Directives:
        """Parse a fault plan, which is written without brackets.

        Raises `SimulatedError` as `parse` does, and for wishes and a pace: they belong to a request
        or to the options.
        """
        directives = self.directives(self._values(plan))
        if directives.wishes != Wishes() or directives.pace != Pace():
            raise bad_request(f"The simulator's plan is not one of faults alone: {plan!r}.")
        return directives

    def directives(self, values: dict[str, Any]) -> Directives:
        """Return the directives that have these values, by their keys."""
        return Directives(
            wishes=Wishes(**values_of(Wishes, values)),
            pace=Pace(**values_of(Pace, values)),
            faults=Faults(**values_of(Faults, values)),
        )

    def _values(self, directive: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        words = []
        long = rf"(?:^|\s)({'|'.join(self.long_keys)})=(.*)\Z"
        if found := re.search(long, directive, re.DOTALL):
            words.append(f"{found[1]}={found[2]}")
            directive = directive[: found.start()]
        for word in (*words, *directive.split()):
            key, _, value = word.partition("=")
            try:
                values[key] = self.readers[key](value)
            except (KeyError, ValueError) as error:
                raise bad_request(f"The simulator does not know the directive {word!r}.") from error
        return values


def values_of(kind: type[DataclassInstance], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of the dataclass `kind`."""
    names = {one.name for one in fields(kind)}
    return {key: value for key, value in values.items() if key in names}


def without_directives(text: str) -> str:
    return _DIRECTIVE.sub("", text).strip()


class Attempts:
    """Counter of the requests of each prompt. Instances that share one count together."""

    def __init__(self, prompts_max: int) -> None:
        self._prompts_max = prompts_max
        self.clear()

    def count(self, prompt: str) -> int:
        """Count the requests of this prompt, this one included."""
        number = (self._counts.get(prompt) or 0) + 1
        self._counts.put(prompt, number, size=1)
        return number

    def clear(self) -> None:
        # The next request of each prompt is its first.
        self._counts: LruCache[str, int] = LruCache(size_max=self._prompts_max)


class FaultPlan:
    """The faults of one instance. `standing` may be replaced while it runs."""

    def __init__(self, name: str, standing: Directives, attempts: Attempts) -> None:
        self._name = name
        self.standing = standing
        self._attempts = attempts

    def in_force(self, asked: Directives, turn_prompt: Sequence[int]) -> Directives:
        """Return the directives with the faults of this very request only.

        `turn_prompt` is the prompt up to its open turn, so that a request that continues a cut turn
        counts as another attempt of the same prompt.
        """
        faults = asked.faults or self.standing.faults
        is_counted = faults.times is not None and self._is_for_here(faults)
        attempt = self._count(turn_prompt) if is_counted else 1
        return replace(asked, faults=faults if self._applies(faults, attempt) else Faults())

    def _applies(self, terms: Faults, attempt: int) -> bool:
        # `only` and `times` stand among the faults.
        in_time = terms.times is None or attempt <= terms.times
        return in_time and self._is_for_here(terms)

    def _is_for_here(self, terms: Faults) -> bool:
        return terms.only in {None, self._name}

    def _count(self, turn_prompt: Sequence[int]) -> int:
        return self._attempts.count(ids_hash(turn_prompt))

    def clear(self) -> None:
        self._attempts.clear()


def ids_hash(ids: Sequence[int]) -> str:
    # The first 32 hex digits of SHA-256 over the ids as 32-bit integers.
    return hashlib.sha256(array("I", ids).tobytes()).hexdigest()[:32]
