"""Prompts as the messages that they are made of; no ids, which would be all of the work.

`SimulatedPrefix` stands for a `gateway.upstreams.routing.prefix_index.HashedPrefix`: two of them
have the same digest at a length exactly if their messages agree up to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from typing_extensions import override

from gateway.upstreams.routing.prefix_index import boundary, count_of

if TYPE_CHECKING:
    from collections.abc import Iterable

_64_BITS = (1 << 64) - 1


class Message(NamedTuple):
    """A message that has a number of its own, of so many tokens."""

    id: int
    tokens: int


class Said(Sequence[int]):
    """What a member said, as far as routing looks at it: its length, and it without the last id."""

    def __init__(self, messages: tuple[Message, ...], short: int = 0) -> None:
        self.messages = messages
        self._length = sum(message.tokens for message in messages) - short

    @override
    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: int) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> Said: ...

    @override
    def __getitem__(self, key: int | slice) -> int | Said:
        assert key == slice(None, -1)
        return Said(self.messages, short=1)


class SimulatedPrefix:
    """A prompt of these messages."""

    __slots__ = ("_chains", "_digests", "_ends", "length", "messages")

    def __init__(self, messages: tuple[Message, ...], length: int | None = None) -> None:
        self.messages = messages
        self._chains, self._ends = chains(messages)
        whole = self._ends[-1] if self._ends else 0
        self.length = whole if length is None else length
        self._digests: list[int] | None = None

    @property
    def chains(self) -> list[int]:
        """What stands for the prompt up to the end of each message."""
        return self._chains

    @property
    def ends(self) -> list[int]:
        """Up to where each message goes."""
        return self._ends

    @property
    def digests(self) -> list[int]:
        """One for each boundary."""
        if self._digests is None:
            count = count_of(self.length)
            self._digests = [self.at(boundary(place)) for place in range(count)]
        return self._digests

    def at(self, length: int) -> int:
        """The digest of the first `length` tokens."""
        place = bisect_left(self._ends, length)
        if self._ends[place] == length:
            return self._chains[place]
        before = self._chains[place - 1] if place else 0
        start = self._ends[place - 1] if place else 0
        return hash((before, self.messages[place].id, length - start)) & _64_BITS

    def longer(self, ids: Sequence[int]) -> SimulatedPrefix:
        """The same with what was said behind it."""
        assert isinstance(ids, Said)
        return SimulatedPrefix(self.messages + ids.messages, self.length + len(ids))

    def longer_by(self, said: tuple[Message, ...]) -> SimulatedPrefix:
        """The same with these messages behind it."""
        return SimulatedPrefix(self.messages + said)

    def named(self, name: str) -> int:
        """What stands for a name."""
        return hash(name) & _64_BITS


def chains(messages: Iterable[Message]) -> tuple[list[int], list[int]]:
    """What stands for all up to each message, and up to how many tokens that goes."""
    made: list[int] = []
    ends: list[int] = []
    chain = end = 0
    for message in messages:
        chain = hash((chain, message.id, message.tokens)) & _64_BITS
        end += message.tokens
        made.append(chain)
        ends.append(end)
    return made, ends
