"""Checks of a gateway's prompts for defects: changed earlier turns, missing frames of results.

The prompt of each turn of a response extends that of the turn before, id for id, or prefix caches
are of no use. What a tool returned stands in a frame of its own, addressed to the assistant.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.models.harmony.tokenizer import END
from gateway.simulator.scripted_turns import CALL_PREFIX, channel_of, messages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.models.harmony.tokenizer import Vocabulary
    from gateway.simulator.scripted_turns import Message

RESPONSES_MAX: Final = 2000
_REQUEST_ID: Final = re.compile(r"(?:.*-)?([0-9a-f]{32})-(\d+)-\d+-\d+-?")
_SPEAKERS: Final = frozenset({"system", "developer", "user", "assistant"})


@dataclass(frozen=True, slots=True)
class _Base:
    """The prompt of the latest turn of a response, without the ids of that turn."""

    turn: int
    length: int
    ids_hash: int


class PromptChecks:
    """Counters of the prompts and violations that one instance has seen."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bases: OrderedDict[str, _Base] = OrderedDict()
        self.prompts = 0
        self.prefix_violations = 0
        self.frame_violations = 0

    def see(self, request_id: str | None, prompt: Sequence[int], turn_start: int) -> None:
        """Check the prompt of one request, whose open turn begins at `turn_start`.

        Only requests of gateways are checked: their ids are `<response>-<turn>-<epoch>-<attempt>`.
        """
        match = _REQUEST_ID.fullmatch(request_id or "")
        if match is None:
            return
        turn, before = int(match[2]), self._bases.pop(match[1], None)
        if before is not None and turn > before.turn:
            self.prompts += 1
            self.prefix_violations += not _extends(prompt, before)
            self.frame_violations += self._odd_frames(prompt, before.length)
        if before is None or turn > before.turn:
            before = _Base(turn, turn_start, hash(tuple(prompt[:turn_start])))
        self._bases[match[1]] = before
        if len(self._bases) > RESPONSES_MAX:
            self._bases.popitem(last=False)

    def as_json(self) -> dict[str, int]:
        # For `GET /simulator/requests`.
        return {
            "prompts": self.prompts,
            "prefix_violations": self.prefix_violations,
            "frame_violations": self.frame_violations,
        }

    def _odd_frames(self, prompt: Sequence[int], start: int) -> int:
        # Counts results behind `start` that lack the frame of a result.
        messages = messages_of(prompt[start:], self._vocabulary)
        return sum(not _is_framed(one) for one in messages if one.role not in _SPEAKERS)


def _extends(prompt: Sequence[int], base: _Base) -> bool:
    return len(prompt) >= base.length and hash(tuple(prompt[: base.length])) == base.ids_hash


def _is_framed(message: Message) -> bool:
    name = message.role if "." in message.role else f"{message.role}."
    known = name.startswith((CALL_PREFIX, "browser.", "python."))
    is_to_assistant = message.recipient == "assistant" and message.terminator == END
    return known and is_to_assistant and message.channel == channel_of(message.role)
