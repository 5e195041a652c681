"""Ids of prompts as JSON. A prompt begins as the one did that it goes on from, so this is kept."""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_IDS: Final = 1024
"""Spelled and kept together, counted from the beginning of the prompt."""
STEP_IDS: Final = 32 * BLOCK_IDS
"""Spelled between two pauses: in about a millisecond, if none of them is kept."""
KEPT_FROM_IDS: Final = 16 * BLOCK_IDS
"""A shorter prompt is spelled sooner than looked up."""
_ID_BYTES: Final = 11
"""Of an id that is kept: four to look it up by, six digits and a comma."""


class Spelling:
    """Spells prompts. Not for threads.

    Making a Python number of an id and its digits of that takes longer than all else that is done
    for the ids of a long history together. What one tenant's prompts are spelled as is never looked
    up for another's, so that nobody can find out by the time it takes what others have sent.
    """

    def __init__(self, *, kept_bytes_max: int = 16 << 20) -> None:
        """At most `kept_bytes_max` bytes are kept, the least recently used first to go."""
        self._blocks_max = kept_bytes_max // (BLOCK_IDS * _ID_BYTES)
        self._blocks: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def __len__(self) -> int:
        """How many blocks are kept."""
        return len(self._blocks)

    def __call__(self, ids: Sequence[int], *, owner: str) -> bytes:
        """A JSON array; `owner` stands for whose prompt it is."""
        if len(ids) < KEPT_FROM_IDS or not isinstance(ids, array):
            return orjson.dumps(list(ids))
        return self._joined(self._parts(ids, owner))

    async def in_steps(self, ids: Sequence[int], *, owner: str) -> bytes:
        """The same, with pauses for the event loop in a long prompt."""
        if len(ids) < KEPT_FROM_IDS or not isinstance(ids, array):
            return self(ids, owner=owner)
        parts: list[bytes] = []
        for start in range(0, len(ids), STEP_IDS):
            if start:
                await asyncio.sleep(0)
            parts += self._parts(ids[start : start + STEP_IDS], owner)
        return self._joined(parts)

    def _parts(self, ids: array[int], owner: str) -> list[bytes]:
        whole = len(ids) - len(ids) % BLOCK_IDS
        packed = memoryview(ids).cast("B")
        size = BLOCK_IDS * ids.itemsize
        parts = [
            self._block(owner, packed[start : start + size].tobytes(), ids.typecode)
            for start in range(0, whole * ids.itemsize, size)
        ]
        if whole < len(ids):
            parts.append(_inside(ids[whole:]))
        return parts

    def _joined(self, parts: Sequence[bytes]) -> bytes:
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return b"[%b]" % b",".join(parts)

    def _block(self, owner: str, packed: bytes, typecode: str) -> bytes:
        key = owner, packed
        spelled = self._blocks.get(key)
        if spelled is None:
            spelled = self._blocks[key] = _inside(array(typecode, packed))
        else:
            self._blocks.move_to_end(key)
        return spelled


def _inside(ids: array[int]) -> bytes:
    """The ids with commas in between."""
    return orjson.dumps(ids.tolist())[1:-1]
