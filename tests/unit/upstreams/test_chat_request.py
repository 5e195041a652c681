"""The body of a request to a chat endpoint: what was asked for, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gateway.generation import AnyText, ChatTerms, Constraint, Sampling, TokenRequest
from gateway.text_ids import END, TEXT_IDS_END, packed_lines
from gateway.upstreams.backend import ServedModel
from gateway.upstreams.chat_endpoint import chat_body
from gateway.upstreams.engines import TOP_P_MIN, ChatServer, UnknownEngine, Vllm

if TYPE_CHECKING:
    from gateway.upstreams.engines import InferenceEngine

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("a", "b")]
CALLS = [{"id": one, "type": "function", "function": {"name": "a"}} for one in ("c1", "c2")]
USER = {"role": "user", "content": "go"}


def body(
    *lines: dict[str, Any],
    engine: InferenceEngine | None = None,
    limits_output: bool = False,
    chat: dict[str, Any] | None = None,
    **sampling: Any,
) -> dict[str, Any]:
    request = TokenRequest(
        request_id="r",
        model="m",
        prompt_ids=packed_lines(map(orjson.dumps, lines)),
        sampling=Sampling(max_tokens=9, **sampling),
        cache_salt="salt",
        stop_ids=(END,),
        id_end=TEXT_IDS_END,
        constraint=None if chat is None else Constraint(AnyText(()), chat=chat),
        chat=ChatTerms(limits_output),
    )
    made: dict[str, Any] = orjson.loads(
        b"".join(chat_body(request, ServedModel("theirs"), engine or ChatServer()))
    )
    return made


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert body({}, USER) == {
        "messages": [USER],
        "model": "theirs",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 1.0,
    }


def test_what_was_asked_for_is_sent() -> None:
    made = body(
        {"tools": TOOLS, "reasoning_effort": "low"},
        USER,
        limits_output=True,
        top_p=0.5,
        seed=3,
        top_k=2,
        min_p=0.1,
        presence_penalty=0.1,
        frequency_penalty=0.2,
    )
    assert made.items() >= {
        "tools": TOOLS, "reasoning_effort": "low", "max_tokens": 9, "top_p": 0.5, "seed": 3,
        "top_k": 2, "min_p": 0.1, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    }.items()  # fmt: skip


def test_a_top_p_of_zero_is_one_that_servers_take() -> None:
    assert body({}, USER, top_p=0.0)["top_p"] == TOP_P_MIN


def test_tools_that_may_not_be_called_are_not_offered() -> None:
    made = body({"tools": TOOLS}, USER, chat={"allowed": ["b"], "tool_choice": "required"})
    assert (made["tools"], made["tool_choice"]) == (TOOLS[1:], "required")
    assert "allowed" not in made


def test_a_result_without_a_call_answers_the_last_one() -> None:
    said = {"role": "assistant", "content": "", "tool_calls": CALLS}
    result = {"role": "tool", "name": "a", "content": "3"}
    named = {**result, "tool_call_id": "c1"}
    assert body({}, USER, said, named, result)["messages"] == [
        USER, said, named, {**result, "tool_call_id": "c2"},
    ]  # fmt: skip
    assert body({}, result)["messages"] == [result]


def test_only_engines_that_know_it_are_told_a_salt() -> None:
    assert body({}, USER, engine=Vllm("0.32.0"))["cache_salt"] == "salt"
    assert "cache_salt" not in body({}, USER, engine=UnknownEngine())
