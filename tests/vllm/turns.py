"""Long sessions, and what holds of the prompts that they become, whatever the model says.

Within a turn of the user a prompt goes on, id for id, behind what the model was given and said.
From one turn to the next it goes on behind what the model was given: once there is an answer,
nothing is shown again of the thoughts that led to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gateway.models.harmony.tokenizer import FIRST_SPECIAL, MESSAGE, START
from tests.fakes.harmony_oracle import vocabulary
from tests.vllm.asking import WEATHER_ASKED, calls_of, result_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.vllm.conftest import Vllm
    from tests.vllm.recording import Exchange, Recorder

Json = dict[str, Any]

CALLS_MAX = 8
HEADER_IDS = 2
"""A prompt ends with `<|start|>assistant`; where a turn was cut, nothing may be left behind it."""
SHOWN_IDS = 40
"""On both sides of the place where a prompt goes wrong."""
PADDING = "Listen well, as there is a lot to say about this and none of it is short. " * 3
"""So that every turn adds to a prompt, however little the model says."""

MUST_CALL: Json = {"tool_choice": "required", "reasoning": {"max_tokens": 30}}
"""A prompt does not tell of it, so that it is the same as if the model had called by itself."""


class Say(Protocol):
    """Sends items behind those before, however that is done; the response."""

    async def __call__(self, items: Sequence[Json], **fields: Any) -> Json: ...


@dataclass
class Turn:
    """What a user said, until the model called nothing any more; one response for each call."""

    responses: list[Json] = field(default_factory=list)
    exchanges: list[list[Exchange]] = field(default_factory=list)
    cached: int = 0

    @property
    def prompt(self) -> list[int]:
        """What the model was given first."""
        return self.exchanges[0][0].prompt

    @property
    def is_completed(self) -> bool:
        """It ended with an answer."""
        return bool(self.responses[-1]["status"] == "completed")


class Session:
    """Notes what becomes of each turn. Nobody else may use the server meanwhile."""

    def __init__(self, say: Say, vllm: Vllm, recorder: Recorder) -> None:
        self._say = say
        self._vllm = vllm
        self._recorder = recorder
        self.turns: list[Turn] = []

    async def turn(self, text: str, **fields: Any) -> Turn:
        """One turn of the user, whose calls are answered; what is to be called is."""
        if not self.turns:
            await self._vllm.until_idle()
        turn = Turn()
        self.turns.append(turn)
        must = MUST_CALL if text == WEATHER_ASKED else {}
        asked = [{"role": "user", "content": PADDING + text}]
        await self._take(turn, asked, {**fields, **must})
        while calls := calls_of(turn.responses[-1]):
            assert len(turn.responses) < CALLS_MAX, "calls without an end"
            await self._take(turn, [result_of(call) for call in calls], fields)
        return turn

    async def _take(self, turn: Turn, items: list[Json], fields: Json) -> None:
        before, cached = len(self._recorder.exchanges), await self._vllm.cached_tokens()
        counted = await self._vllm.counted()
        response = await self._say(items, **fields)
        exchanges = self._recorder.exchanges[before:]
        await self._vllm.until_counted(counted + len(exchanges))
        found = await self._vllm.cached_tokens() - cached
        if all(exchange.cached is not None for exchange in exchanges):  # and none was cut off
            assert sum(exchange.cached or 0 for exchange in exchanges) == found
        turn.responses.append(response)
        turn.exchanges.append(exchanges)
        turn.cached += found


def check_prompts(turns: Sequence[Turn]) -> int:
    """Fails unless each prompt goes on behind the one before; how many did within a turn."""
    behind: list[int] = []
    loops = 0
    is_settled = True
    for turn in turns:
        assert turn.prompt[: len(behind)] == behind, parting(behind, turn.prompt)
        if is_settled:
            behind = turn.prompt[:-HEADER_IDS]
        is_settled = turn.is_completed
        for (*_, said), (asked, *_) in zip(turn.exchanges, turn.exchanges[1:], strict=False):
            known = headers_as_trained(said.prompt + said.output)
            prompt = headers_as_trained(asked.prompt)
            assert prompt[: len(known)] == known, parting(known, prompt)
            loops += 1
    return loops


def headers_as_trained(ids: Sequence[int]) -> list[int]:
    """The ids with the words of headers in the tokens that a prompt has for them.

    A model that samples may spell `commentary` in five tokens. A prompt repeats these where the
    stored item has its ids; where a client has sent the item back, its header is spelled anew.
    """
    found: list[int] = []
    words: list[int] = []
    in_header = False
    for one in ids:
        if in_header and one < FIRST_SPECIAL:
            words.append(one)
            continue
        if words:
            found += vocabulary().encode(vocabulary().decode(words))
            words = []
        found.append(one)
        in_header = one == START or (in_header and one != MESSAGE)
    return found + words


def parting(known: list[int], prompt: list[int]) -> str:
    """Where a prompt parts from what it should go on behind, spelled."""
    at = next(
        (i for i, pair in enumerate(zip(known, prompt, strict=False)) if len({*pair}) > 1),
        len(prompt),
    )
    begin = max(0, at - SHOWN_IDS)
    spelled = [vocabulary().decode(ids[begin : at + SHOWN_IDS]) for ids in (known, prompt)]
    return f"at {at} of {len(known)}: {spelled[0]!r} is known, {spelled[1]!r} was sent"


async def check_cache(turns: Sequence[Turn], vllm: Vllm) -> None:
    """Fails unless the server found every prompt that another goes on behind, and more each time.

    It keeps whole blocks only. Where a model sees through a window, as gpt-oss does in every other
    layer, it need not keep those of what was generated.
    """
    block = await vllm.block_tokens()
    prompts: list[list[int]] = []
    for turn in turns:
        expected = 0
        for prompt in (one.prompt for exchanges in turn.exchanges for one in exchanges):
            begun = [len(one) for one in prompts if one == prompt[: len(one)]]
            # The last token of a prompt is computed anew, and vLLM 0.32 forgets a block that ends
            # with a prompt's last token.
            known = max(0, min(max(begun, default=0), len(prompt)) - 1)
            expected += known // block * block
            prompts.append(prompt)
        assert turn.cached >= expected, [len(one.prompt) for some in turn.exchanges for one in some]
    third, last = turns[len(turns) // 3], turns[-1]
    assert 0 < third.cached < last.cached
