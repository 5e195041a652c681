"""A stream event as every transport carries it: typed, numbered, already encoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

TERMINAL_TYPES: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


# One is made for each token. The guard of a frozen one would make that four times as long.
@dataclass(slots=True, unsafe_hash=True)
class Event:
    """`data` is the whole JSON object on one line, `type` and `sequence_number` in it.

    `delta_length` is the number of characters of `delta` in a delta event and 0 otherwise: the
    writer pads by it (`stream_options.include_obfuscation`). `text` is the JSON of such a `delta`,
    for who writes it elsewhere; empty where there is more to tell of it (logprobs) or nobody cared.
    """

    type: str
    sequence_number: int
    data: bytes
    delta_length: int = 0
    text: bytes = field(default=b"", compare=False)

    @property
    def is_terminal(self) -> bool:
        """Nothing follows it."""
        return self.type in TERMINAL_TYPES
