"""The body of a request for a completion, in the words of the engine that gets it. No I/O here.

vLLM ignores unknown keys; SGLang refuses some from 0.5.22 on. So each is sent what it knows, and
nothing is ever left to a backend's default.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import orjson

from gateway.constraints.structural_tags import Unsayable, is_enforced, tag_of
from gateway.upstreams.engines import Capabilities, UnknownEngine

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from gateway.generation import Constraint, TokenRequest
    from gateway.upstreams.backend import ServedModel
    from gateway.upstreams.engines import InferenceEngine, TokenEndpoint

Fields = Mapping[str, object]
_NO_PAIR: Final[Fields] = MappingProxyType({})

TAG_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Grammar:
    """Fields of a request; with `holds` no id of the turn can break the constraint."""

    fields: Fields
    holds: bool


@dataclass(frozen=True, slots=True)
class RequestWriter:
    engine: InferenceEngine = field(default_factory=UnknownEngine)
    can: Capabilities = field(default_factory=Capabilities)

    def grammar(self, request: TokenRequest) -> Grammar | None:
        """Return how to bind the model to the constraint; None if there is no way."""
        constraint = request.constraint
        if constraint is None or not self.can.rank(constraint):
            return None
        if self.can.grammars == "answer":
            # A prompt that repeats an earlier answer would be bound at once, header and all.
            if _holds(request.prompt_ids, constraint.answer_opening):
                return None
            return Grammar(self.engine.answer_fields(constraint), holds=False)
        return self._structural_tag(constraint, self.engine.endpoint(request))

    def body(
        self,
        request: TokenRequest,
        *,
        served: ServedModel,
        endpoint: TokenEndpoint,
        prompt: Sequence[bytes],
        grammar: Grammar | None = None,
        pair: Fields = _NO_PAIR,
    ) -> list[bytes]:
        """Return the JSON in pieces; by `pair` both servers of a pair find each other."""
        bound = dict(grammar.fields) if grammar is not None else {}
        body = self.engine.body(request, served, self.can, bound)
        body.update(pair)
        key = orjson.dumps(endpoint.prompt_key)
        # A long prompt is not copied until all of the message is put together.
        return [b"{", key, b":", *prompt, b",", orjson.dumps(body)[1:]]

    def has_tag_for(self, request: TokenRequest, constraint: Constraint) -> bool:
        # True if the structural tag was already made for an earlier request.
        return self._tag_key(self.engine.endpoint(request)) in constraint.tags

    def _tag_key(self, endpoint: TokenEndpoint) -> Hashable:
        return type(self.engine), endpoint.path, self.can.max_whitespace

    def _structural_tag(self, constraint: Constraint, endpoint: TokenEndpoint) -> Grammar | None:
        key = self._tag_key(endpoint)
        if key not in constraint.tags:
            constraint.tags[key] = self._new_tag(constraint, endpoint)
        grammar: Grammar | None = constraint.tags[key]
        return grammar

    def _new_tag(self, constraint: Constraint, endpoint: TokenEndpoint) -> Grammar | None:
        try:
            tag = tag_of(constraint, max_whitespace=self.can.max_whitespace)
            encoded = orjson.dumps(tag)
        except (Unsayable, orjson.JSONEncodeError):
            return None
        if len(encoded) > TAG_BYTES_MAX:
            return None
        fields = self.engine.tag_fields(endpoint, tag, encoded)
        if constraint.bare:
            # To a grammar of text the engines take markers for the text that spells them.
            fields["logit_bias"] = {str(marker): -100 for marker in constraint.markers}
        return Grammar(fields, holds=is_enforced(constraint))


def _holds(ids: Sequence[int], wanted_ids: Sequence[int]) -> bool:
    # Compares bytes: a Python number for each id of a long prompt would take the loop milliseconds.
    packed = (ids if isinstance(ids, array) else array("I", ids)).tobytes()
    opening = array("I", wanted_ids)
    wanted, size = opening.tobytes(), opening.itemsize
    place = packed.find(wanted)
    while place >= 0:
        if place % size == 0:  # else it begins within an id
            return True
        place = packed.find(wanted, place + 1)
    return False


BLOCK_IDS: Final = 2048
"""Ids that are encoded and kept together, from the beginning of the prompt."""
STEP_BLOCKS: Final = 16
"""Blocks encoded between two pauses: about a millisecond."""
KEPT_FROM_IDS: Final = 8 * BLOCK_IDS
"""A shorter prompt is encoded sooner than looked up."""
_EVERY_BYTE: Final = 61
"""Stride of the bytes that are a block's key, since hashing all takes longer. It is odd, so that
these are not the same byte of every id."""
_ID_BYTES: Final = 11
"""Bytes of a kept id: four to compare it with, six digits and a comma."""


class UnknownId(ValueError):
    """A prompt has an id that its model does not know; a fault of this gateway."""

    def __init__(self, id_: int) -> None:
        super().__init__(f"id {id_} of the prompt is not in the vocabulary of the model")


class PromptEncoder:
    """Token ids → their JSON. Not for threads.

    Blocks are kept, because encoding a long history takes longest. Tenants share none: the time
    would show what others have sent.
    """

    def __init__(self, *, kept_bytes_max: int = 16 << 20) -> None:
        # At most `kept_bytes_max` bytes are kept, the least recently used first to go.
        self._blocks_max = kept_bytes_max // (BLOCK_IDS * _ID_BYTES)
        self._blocks: OrderedDict[tuple[str, bytes], tuple[bytes, bytes]] = OrderedDict()
        self._since_pause = 0

    def __len__(self) -> int:
        return len(self._blocks)

    async def encode(
        self, ids: Sequence[int], *, owner: str, id_end: int | None = None
    ) -> list[bytes]:
        """Return the ids as a JSON array, in pieces; a long prompt pauses for the event loop.

        Raises `UnknownId`.
        """
        if id_end is not None:
            await self._check(ids, id_end)
        if len(ids) < KEPT_FROM_IDS or not isinstance(ids, array):
            return [orjson.dumps(list(ids))]
        pieces: list[bytes] = []
        for piece in self._pieces(ids, owner):
            pieces.append(piece)
            if self._since_pause >= STEP_BLOCKS:
                self._since_pause = 0
                await asyncio.sleep(0)
        return [b"[", *pieces[:-1], pieces[-1][:-1], b"]"]

    async def _check(self, ids: Sequence[int], id_end: int) -> None:
        step = BLOCK_IDS * STEP_BLOCKS
        for start in range(0, len(ids), step):
            if start:
                await asyncio.sleep(0)
            if (highest := max(ids[start : start + step])) >= id_end:
                raise UnknownId(highest)

    def _pieces(self, ids: array[int], owner: str) -> Iterator[bytes]:
        whole = len(ids) - len(ids) % BLOCK_IDS
        packed = memoryview(ids).cast("B")
        size = BLOCK_IDS * ids.itemsize
        for start in range(0, whole * ids.itemsize, size):
            yield self._block(owner, packed[start : start + size].tobytes(), ids.typecode)
        if whole < len(ids):
            yield _encoded(ids[whole:])

    def _block(self, owner: str, packed: bytes, typecode: str) -> bytes:
        key = owner, packed[::_EVERY_BYTE]
        kept = self._blocks.get(key)
        if kept is not None and kept[0] == packed:
            self._blocks.move_to_end(key)
            return kept[1]
        self._since_pause += 1
        encoded = _encoded(array(typecode, packed))
        self._blocks[key] = packed, encoded
        self._blocks.move_to_end(key)
        if len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return encoded


def _encoded(ids: array[int]) -> bytes:
    return orjson.dumps(ids.tolist())[1:-1] + b","
