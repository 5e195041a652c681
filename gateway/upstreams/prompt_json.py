"""Ids of prompts as JSON. A prompt begins as the one did that it goes on from, so this is kept."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK_IDS: Final = 2048
"""Spelled and kept together, counted from the beginning of the prompt: what is behind the last of
them is spelled anew each time."""
STEP_BLOCKS: Final = 16
"""Spelled between two pauses, those that are kept left out: in about a millisecond."""
KEPT_FROM_IDS: Final = 8 * BLOCK_IDS
"""A shorter prompt is spelled sooner than looked up."""
_EVERY_BYTE: Final = 61
"""A block is looked up by each of its bytes with such a number, and then compared: to hash all of
them takes longer. It is odd, so that these are not the same one of every id."""
_ID_BYTES: Final = 11
"""Of an id that is kept: four to compare it with, six digits and a comma."""


class PromptEncoder:
    """Token ids → their JSON. Not for threads.

    Making a Python number of an id and its digits of that takes longer than all else that is done
    for the ids of a long history together. What one tenant's prompts are spelled as is never looked
    up for another's, so that nobody can find out by the time it takes what others have sent.
    """

    def __init__(self, *, kept_bytes_max: int = 16 << 20) -> None:
        """At most `kept_bytes_max` bytes are kept, the least recently used first to go."""
        self._blocks_max = kept_bytes_max // (BLOCK_IDS * _ID_BYTES)
        self._blocks: OrderedDict[tuple[str, bytes], tuple[bytes, bytes]] = OrderedDict()
        self._since_pause = 0

    def __len__(self) -> int:
        """How many blocks are kept."""
        return len(self._blocks)

    def __call__(self, ids: Sequence[int], *, owner: str) -> list[bytes]:
        """A JSON array, in pieces; `owner` stands for whose prompt it is."""
        if len(ids) < KEPT_FROM_IDS or not isinstance(ids, array):
            return [orjson.dumps(list(ids))]
        return _array(list(self._pieces(ids, owner)))

    async def in_steps(self, ids: Sequence[int], *, owner: str) -> list[bytes]:
        """The same, with pauses for the event loop in a long prompt."""
        if len(ids) < KEPT_FROM_IDS or not isinstance(ids, array):
            return self(ids, owner=owner)
        pieces: list[bytes] = []
        for piece in self._pieces(ids, owner):
            pieces.append(piece)
            if self._since_pause >= STEP_BLOCKS:
                self._since_pause = 0
                await asyncio.sleep(0)
        return _array(pieces)

    def _pieces(self, ids: array[int], owner: str) -> Iterator[bytes]:
        """The ids, each with a comma behind it."""
        whole = len(ids) - len(ids) % BLOCK_IDS
        packed = memoryview(ids).cast("B")
        size = BLOCK_IDS * ids.itemsize
        for start in range(0, whole * ids.itemsize, size):
            yield self._block(owner, packed[start : start + size].tobytes(), ids.typecode)
        if whole < len(ids):
            yield _spelled(ids[whole:])

    def _block(self, owner: str, packed: bytes, typecode: str) -> bytes:
        key = owner, packed[::_EVERY_BYTE]
        kept = self._blocks.get(key)
        if kept is not None and kept[0] == packed:
            self._blocks.move_to_end(key)
            return kept[1]
        self._since_pause += 1
        spelled = _spelled(array(typecode, packed))
        self._blocks[key] = packed, spelled
        self._blocks.move_to_end(key)
        if len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return spelled


def _spelled(ids: array[int]) -> bytes:
    """The ids, each with a comma behind it."""
    return orjson.dumps(ids.tolist())[1:-1] + b","


def _array(pieces: list[bytes]) -> list[bytes]:
    """A JSON array of what has a comma behind it; of something, that is."""
    return [b"[", *pieces[:-1], pieces[-1][:-1], b"]"]
