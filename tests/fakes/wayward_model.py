"""Backends whose model obeys, drifts or attacks: what it says is drawn, whatever it is asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from gateway.constraints.output_rules import AnswerFormat, OutputRules, ToolRule
from gateway.errors import UpstreamFailed
from gateway.generation import FinishReason, SegmentKind, TokenChunk
from gateway.models.harmony.tokenizer import STOP_IDS
from gateway.upstreams.problems import GrammarFailed
from tests.fakes.harmony_script import script_ids
from tests.fakes.token_delivery import tell

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Iterator, Sequence

    from gateway.generation import TokenRequest, TokenSink

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
SHELL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    "required": ["command"],
}
TOOLS: Final = {
    rule.name: rule
    for rule in (
        ToolRule("strict", SegmentKind.FUNCTION_CALL, "strict", schema=SCHEMA),
        ToolRule("free", SegmentKind.FUNCTION_CALL, "free"),
        ToolRule("local_shell", SegmentKind.LOCAL_SHELL_CALL, "local_shell", schema=SHELL),
    )
}
ANSWERS: Final = (
    None,
    AnswerFormat("json_object", {"type": "object"}),
    AnswerFormat("json_schema", SCHEMA, name="n", strict=True),
)

_NEXT: Final = "<|end|><|start|>assistant"
_HEADERS: Final = (
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<|channel|>final <|constrain|>json<|message|>",
    "<|channel|>commentary<|message|>",
    *(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        for name in (*TOOLS, "unknown")
    ),
    " to=functions.strict<|channel|>commentary json<|message|>",
    " to=functions.free<|channel|>analysis<|message|>",
    "<|channel|>commentary to=python code<|message|>",
    "<|channel|>nonsense<|message|>",
    "<|channel|>final",
    "<|message|>",
    "user<|message|>",
    "word " * 70,
)
_BODIES: Final = (
    '{"n": 1}',
    '{"n": "one"}',
    '{"command": ["ls"]}',
    '{"n": 1',
    "1}",
    "I'm sorry, I cannot do that.",
    "Well, then. It is so.",
    "thinking " * 12,
    "",
    "no " * 90,
)
_ENDINGS: Final = (
    *(_NEXT, _NEXT, _NEXT),
    *("<|return|>", "<|call|>", "<|return|>", "<|call|>", "<|endoftext|>"),
    *("<|end|>", "<|start|>assistant", "<|start|>", "<|channel|>", ""),
)


def rules() -> st.SearchStrategy[OutputRules]:
    """What may be demanded of the output."""
    return st.builds(
        _make_rules,
        offered=st.sets(st.sampled_from(sorted(TOOLS))),
        calls=st.sampled_from(["auto", "required", "none"]),
        hidden=st.sets(st.sampled_from(sorted(TOOLS)), max_size=1),
        open_calls=st.booleans(),
        one_call=st.booleans(),
        answer=st.sampled_from(ANSWERS),
    )


def _make_rules(*, offered: set[str], calls: Any, hidden: set[str], **demands: Any) -> OutputRules:
    tools = {name: TOOLS[name] for name in sorted(offered)} if calls != "none" else {}
    allowed = frozenset(tools) - hidden
    if calls == "required" and not allowed:
        calls, allowed = "auto", frozenset(tools)
    return OutputRules(tools, allowed, calls, **demands)


_message: Final = st.tuples(
    st.sampled_from(_HEADERS), st.sampled_from(_BODIES), st.sampled_from(_ENDINGS)
).map("".join)
speeches: Final = st.lists(_message, min_size=1, max_size=4).map("".join)
"""What is said to one request: messages, more or less."""


@dataclass(frozen=True)
class Manner:
    """How one request is answered: the speech, where it breaks off, and what is claimed.

    `is_stuck`: what breaks off is the engine's grammar, if there is one.
    """

    speech: str
    sizes: tuple[int, ...] = (1,)
    breaks_after: int | None = None
    constrained: bool = False
    is_stuck: bool = False


manners: Final = st.builds(
    Manner,
    speeches,
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    st.none() | st.none() | st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)


@dataclass
class WaywardModel:
    """Answers each request in the next manner, and the rest like the last."""

    manners: Sequence[Manner]
    requests: list[TokenRequest] = field(default_factory=list)

    async def generate(
        self,
        request: TokenRequest,
        sink: TokenSink,
        *,
        avoid: Collection[str] = (),
        attempts_max: int | None = None,
    ) -> None:
        await tell(sink, self._say(request))

    async def _say(self, request: TokenRequest) -> AsyncGenerator[TokenChunk, None]:
        manner = self.manners[min(len(self.requests), len(self.manners) - 1)]
        self.requests.append(request)
        said = _until_stop(script_ids(manner.speech))
        rest = said[: request.sampling.max_tokens]
        for chunk in _cut(rest[: manner.breaks_after], manner.sizes):
            await asyncio.sleep(0)
            yield TokenChunk(chunk, constrained=manner.constrained, upstream="gpu")
        if manner.breaks_after is not None and manner.breaks_after < len(rest):
            is_bound = manner.is_stuck and request.constraint is not None
            raise (GrammarFailed if is_bound else UpstreamFailed)("cut", upstream="gpu")
        is_short = len(rest) == request.sampling.max_tokens and rest[-1] not in STOP_IDS
        finish = FinishReason.LENGTH if is_short else FinishReason.STOP
        yield TokenChunk([], finish, cached_tokens=2, constrained=manner.constrained)


def _until_stop(ids: list[int]) -> list[int]:
    end = next((at for at, token in enumerate(ids, 1) if token in STOP_IDS), len(ids))
    return ids[:end]


def _cut(ids: list[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    at, turn = 0, 0
    while at < len(ids):
        size = sizes[turn % len(sizes)]
        yield ids[at : at + size]
        at, turn = at + size, turn + 1
