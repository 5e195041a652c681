"""Servers without token ids, as they say what they are."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import ContextOverflow
from gateway.upstreams.backend import Backend
from gateway.upstreams.engines import (
    CHAT_SERVERS,
    Capabilities,
    ChatServer,
    LlamaCpp,
    Ollama,
    TextGenerationInference,
)
from gateway.upstreams.problems import refusal

LISTED = {"object": "list", "data": [{"id": "m", "owned_by": "llamacpp"}]}
INFO = {"version": "3.0.1", "router": "text-generation-router", "model_id": "m"}


@pytest.mark.parametrize(
    ("kind", "told", "text"),
    [
        (LlamaCpp, LISTED, "llama.cpp"),
        (Ollama, {"version": "0.6.0"}, "Ollama 0.6.0"),
        (TextGenerationInference, INFO, "TGI 3.0.1"),
    ],
)
def test_it_says_what_it_is(kind: type[ChatServer], told: dict[str, Any], text: str) -> None:
    found = kind.read(kind.questions[0], told)
    assert found is not None
    assert str(found) == text
    assert kind.read(kind.questions[0], {}) is None
    assert found.unusable is None
    assert found.capabilities(grammars=True, priorities=True) == Capabilities(logprobs=True)


def test_any_other_is_told_nothing_that_was_not_asked_for() -> None:
    plain = ChatServer()
    assert (str(plain), plain.read("/x", {}), plain.grammars((1, 0, 0))) == (
        "chat completions",
        None,
        "none",
    )
    assert plain.priority_sign == 1
    assert all(one.ids_since == (0, 0, 0) for one in CHAT_SERVERS)


@pytest.mark.parametrize(
    "message",
    [
        "the request exceeds the available context size, try increasing it",
        "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
        "`inputs` must have less than 4096 tokens. Given: 5000",
    ],
)
def test_a_prompt_that_is_too_long_is_known_by_its_words(message: str) -> None:
    assert isinstance(refusal("box", 400, message), ContextOverflow)


@pytest.mark.parametrize(
    ("models", "passed", "is_chat_only"),
    [({}, {"a"}, False), ({"a": "a"}, {"a"}, True), ({"a": "a", "b": "b"}, {"a"}, False)],
)
def test_a_backend_of_pass_through_models_alone_need_know_no_ids(
    models: dict[str, str], passed: set[str], is_chat_only: bool
) -> None:
    backend = Backend("b", "http://x", models, passed_through=frozenset(passed))
    assert backend.is_chat_only is is_chat_only
