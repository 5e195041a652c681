"""A prefix cache over blocks of ids, as an engine's: what it reports as cached was really seen."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK_IDS: Final = 16


class PrefixCache:
    """Least recently used blocks go first. A block is known by all ids up to its end and the salt.

    Blocks are remembered by 64-bit hashes: a collision would report a hit that was none.
    """

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def cached_ids(self, prompt: Sequence[int], salt: str) -> int:
        """How many ids at the front of the prompt need not be computed; never all of them."""
        count = 0
        for block in _blocks(prompt, salt, len(prompt) - 1):
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            count += BLOCK_IDS
        return count

    def add(self, ids: Sequence[int], salt: str) -> None:
        """Remember what was computed: all ids but the last, which was only sampled."""
        for block in _blocks(ids, salt, len(ids) - 1):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    @property
    def usage(self) -> float:
        """The part in use, 0 to 1."""
        return len(self._blocks) / self._blocks_max


def _blocks(ids: Sequence[int], salt: str, end: int) -> Iterator[int]:
    previous = hash(salt)
    for start in range(0, end - BLOCK_IDS + 1, BLOCK_IDS):
        previous = hash((previous, *ids[start : start + BLOCK_IDS]))
        yield previous
