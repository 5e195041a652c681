"""What steers sampling arrives at the backend, and what ends the answer ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.controlled import NONE, TURN, site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.controlled import Site
    from tests.fakes.postgres import PostgresServer

Json = dict[str, Any]

SAY = "[[sim think=none say=one two three, four five six]]"


@pytest.fixture(scope="module")
async def where(postgres: PostgresServer, template: str) -> AsyncIterator[Site]:
    """Over two kinds of backends."""
    async with site(postgres, template, TURN, NONE) as running:
        yield running


async def rows(where: Site, **body: Any) -> list[Json]:
    """What the backends saw of a response to it."""
    response = await where.post(**body)
    found = await where.backends.of_response(response["id"])
    assert found
    return found


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"seed": 7}, {"seed": 7}),
        ({"top_k": 5}, {"top_k": 5}),
        ({"min_p": 0.25}, {"min_p": 0.25}),
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 2}, {"temperature": 2}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
        ({"frequency_penalty": -1.5}, {"frequency_penalty": -1.5}),
    ],
    ids=",".join,
)
async def test_it_arrives_at_the_backend(where: Site, asked: Json, sent: Json) -> None:
    (row,) = await rows(where, input="hi", **asked)
    assert {key: row["sampling"].get(key) for key in sent} == sent


async def test_what_was_not_asked_for_does_not(where: Site) -> None:
    (row,) = await rows(where, input="hi", top_k=-1)
    assert not {"seed", "min_p", "top_k"} & {
        key for key, value in row["sampling"].items() if value is not None
    }


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"seed": 2**63}, "seed"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": ""}, "stop[0]"),
        ({"max_output_tokens": 15}, "max_output_tokens"),
        ({"service_tier": "best"}, "service_tier"),
        ({"reasoning": {"max_tokens": 0}}, "reasoning.max_tokens"),
    ],
    ids=str,
)
async def test_out_of_bounds_it_is_refused(where: Site, asked: Json, param: str) -> None:
    assert (await where.refused(input="hi", **asked))["param"] == param


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("three", "one two "),
        ([" three, fo"], "one two"),
        (["six", "ee, f"], "one two thr"),
        (["o t", "ne"], "o"),
        (["nothing"], "one two three, four five six"),
        ("one", ""),
        (["six!", "six"], "one two three, four five "),
    ],
    ids=str,
)
async def test_the_answer_ends_before_a_stop(where: Site, stop: Any, text: str) -> None:
    shown = await where.everywhere(input=SAY, stop=stop)
    assert shown.status == "completed"
    assert "".join(part["text"] for part in shown.parts) == text
    assert "".join(shown.deltas("output_text")) == text
    assert shown.response["stop"] == ([stop] if isinstance(stop, str) else stop)


async def test_a_stop_in_several_bytes_is_found(where: Site) -> None:
    shown = await where.everywhere(input="[[sim say=so 龘龘 𓀀𓀁 ends]]", stop=["𓀁 e"])
    assert shown.text == "so 龘龘 𓀀"


async def test_a_stop_in_reasoning_or_arguments_ends_nothing(where: Site) -> None:
    free = await where.post(input="Greet me.")
    thought = free["output"][0]["content"][0]["text"]
    shown = await where.everywhere(input="Greet me.", stop=[thought[:10]])
    assert shown.response["output"][0]["content"][0]["text"] == thought


@pytest.mark.parametrize("tokens", [16, 17])
async def test_the_least_number_of_tokens_is_kept(where: Site, tokens: int) -> None:
    shown = await where.everywhere(input="[[sim think=none tokens=100]]", max_output_tokens=tokens)
    assert shown.status == "incomplete max_output_tokens"
    assert shown.response["usage"]["output_tokens"] == tokens


async def test_sampling_survives_a_hop(where: Site) -> None:
    seen = await rows(
        where, input=f"{SAY} [[sim die_after=4 times=1]]", seed=7, temperature=0.5, top_k=3
    )
    assert len(seen) == 2
    assert [row["sampling"]["temperature"] for row in seen] == [0.5, 0.5]
    assert [row["sampling"]["top_k"] for row in seen] == [3, 3]
    assert seen[1]["max_tokens"] == seen[0]["max_tokens"] - 4
