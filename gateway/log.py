"""The log of a response: a closed set of entries. All that a client sees is a fold of them.

Rule: what an entry folds to must never depend on anything but the request and the entries before
it. An entry that needs the clock carries the time itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from gateway.generation import FinishReason

FOLD_VERSION = 1
"""Raised by a release that folds an existing log to other events."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """A model call begins. `prefill` ids were put into the prompt after `<|start|>assistant`.

    `input_tokens` are those the caller pays for: the whole prompt on the first turn, none when
    the gateway continues a turn by itself.
    """

    input_tokens: int
    prefill: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids as the model said them, in order."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Alive:
    """Nothing was said for a while; folds to `response.in_progress`, which real clients count."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The model call ended well."""

    finish: FinishReason
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The response is over, at `at` (unix seconds). Always the last entry, always exactly one.

    `reason` is set for `incomplete`; `code` and `message` for `failed`.
    """

    status: Literal["completed", "incomplete", "failed", "cancelled"]
    at: int
    reason: str | None = None
    code: str | None = None
    message: str | None = None


Entry = TurnStarted | Tokens | Alive | TurnEnded | Finished
