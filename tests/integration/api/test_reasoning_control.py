"""How long the model thinks, what is shown of it, and what a client can give back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.controlled import FLEETS, site
from tests.fakes.harmony_oracle import vocabulary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.controlled import Shown, Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

CLOCK: Json = {
    "type": "function",
    "name": "now",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
}


@pytest.fixture(scope="module", params=["grammars", "no grammars"])
async def where(
    request: pytest.FixtureRequest, postgres: PostgresServer, template: str
) -> AsyncIterator[Site]:
    """With grammars and without."""
    async with site(postgres, template, *FLEETS[request.param]) as running:
        yield running


async def prompt_of(where: Site, response_id: str) -> str:
    """What the backends were given first."""
    row = (await where.backends.of_response(response_id))[0]
    return vocabulary().decode([one for one in row["prompt_ids"] if one < 200_000])


def reasoning(shown: Shown) -> list[Json]:
    return [item for item in shown.response["output"] if item["type"] == "reasoning"]


@pytest.mark.slow
@pytest.mark.requirement("create.reasoning-effort")
@pytest.mark.parametrize(
    ("effort", "told"),
    [
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("minimal", "low"),
        ("none", "low"),
        ("xhigh", "high"),
    ],
)
async def test_the_model_is_told_the_nearest_effort(where: Site, effort: str, told: str) -> None:
    response = await where.post(input="hi", reasoning={"effort": effort})
    assert f"Reasoning: {told}\n" in await prompt_of(where, response["id"])
    assert response["reasoning"]["effort"] == told


async def test_an_effort_that_is_none_is_refused(where: Site) -> None:
    error = await where.refused(input="hi", reasoning={"effort": "huge"})
    assert (error["code"], error["param"]) == ("unsupported_value", "reasoning.effort")


@pytest.mark.slow
@pytest.mark.requirement("parts.summary-text")
@pytest.mark.requirement("order.summary")
@pytest.mark.parametrize("asked", ["auto", "concise", "detailed"])
async def test_a_summary_is_streamed_and_in_the_body(where: Site, asked: str) -> None:
    shown = await where.everywhere(input="Think.", reasoning={"effort": "high", "summary": asked})
    (item,) = reasoning(shown)
    (part,) = item["summary"]
    (content,) = item["content"]
    assert "".join(shown.deltas("reasoning_summary_text")) == part["text"]
    assert "".join(shown.deltas("reasoning_text")) == content["text"]
    if asked == "concise":
        assert 0 < len(part["text"]) <= 300
        assert content["text"].startswith(part["text"].rstrip("…"))
    else:
        assert part["text"] == content["text"]
    assert shown.response["reasoning"]["summary"] == asked


async def test_without_a_wish_there_is_no_summary(where: Site) -> None:
    shown = await where.everywhere(input="Think.")
    assert [item["summary"] for item in reasoning(shown)] == [[]]
    assert shown.deltas("reasoning_summary_text") == []


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 7, 40, 500])
@pytest.mark.parametrize("attack", ["", "attack=endless"])
async def test_reasoning_ends_at_its_budget(where: Site, budget: int, attack: str) -> None:
    shown = await where.everywhere(
        input=f"Think. [[sim {attack} think=600]]" if not attack else f"Think. [[sim {attack}]]",
        reasoning={"max_tokens": budget},
    )
    assert shown.status == "completed"
    used = shown.response["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert used == budget
    assert shown.parts[-1]["text"]
    assert shown.response["reasoning"]["max_tokens"] == budget


async def test_less_than_the_budget_is_not_touched(where: Site) -> None:
    shown = await where.everywhere(input="Think.", reasoning={"max_tokens": 5_000})
    free = await where.post(input="Think.")
    assert shown.response["usage"]["output_tokens"] == free["usage"]["output_tokens"]
    assert shown.text == free["output"][-1]["content"][0]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [16, 17, 32, 100])
async def test_what_may_be_said_is_never_all_thought(where: Site, tokens: int) -> None:
    shown = await where.everywhere(
        input="Think. [[sim attack=endless]]",
        max_output_tokens=tokens,
        reasoning={"max_tokens": 10_000},
    )
    assert shown.parts[-1]["text"]
    assert shown.response["usage"]["output_tokens"] <= tokens
    assert shown.response["status"] in {"completed", "incomplete"}


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "now"}])
@pytest.mark.parametrize("wish", ["think=300", "attack=endless"])
async def test_after_the_budget_tools_are_still_called(where: Site, choice: Any, wish: str) -> None:
    shown = await where.everywhere(
        input=f"Call now. [[sim {wish}]]",
        tools=[CLOCK],
        tool_choice=choice,
        reasoning={"max_tokens": 20},
    )
    assert shown.status == "completed"
    assert shown.response["usage"]["output_tokens_details"]["reasoning_tokens"] <= 20
    if choice == "auto":
        assert shown.calls or shown.parts[-1]["text"]
    else:
        assert [call["name"] for call in shown.calls] == ["now"]


@pytest.mark.slow
async def test_after_the_budget_the_answer_has_its_format(where: Site) -> None:
    shown = await where.everywhere(
        input="Think. [[sim attack=endless]]",
        text={"format": {"type": "json_object"}},
        reasoning={"max_tokens": 20},
    )
    assert shown.status == "completed"
    assert shown.text.startswith("{")


async def test_a_model_that_only_thinks_answers_in_the_end(where: Site) -> None:
    shown = await where.everywhere(input="Think. [[sim attack=silent]]")
    assert shown.status == "completed"
    assert shown.parts[-1]["text"]
    assert len(await where.backends.of_response(shown.background_id)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("period", [1, 3, 8])
@pytest.mark.parametrize("attack", ["loop", "think_loop"])
async def test_a_loop_ends_as_incomplete(where: Site, attack: str, period: int) -> None:
    shown = await where.everywhere(input=f"Go on. [[sim attack={attack}:{period}]]")
    assert shown.status == "incomplete max_output_tokens"
    assert shown.response["usage"]["output_tokens"] < 2_000


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["header", "long_header"])
@pytest.mark.parametrize("times", [1, 2, 9])
async def test_headers_that_are_none_are_mended(where: Site, attack: str, times: int) -> None:
    shown = await where.everywhere(input=f"Go. [[sim attack={attack} times={times}]]")
    assert shown.response["status"] in {"completed", "incomplete"}
    if times < 3:
        assert shown.status == "completed"
        assert shown.parts[-1]["text"]
        assert shown.calls == []
