"""A third engine: a class and a line of registration."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson
from typing_extensions import override

from gateway.errors import ContextOverflow
from gateway.generation import Constraint, Sampling, Token, TokenRequest
from gateway.upstreams import problems
from gateway.upstreams.backend import ServedModel
from gateway.upstreams.engines import ENGINES, InferenceEngine
from gateway.upstreams.request_writer import RequestWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    import pytest

    from gateway.upstreams.engines import Fields, Grammars, Release, TokenEndpoint

BOUND = TokenRequest(
    "req_1", "m", [1], Sampling(max_tokens=9), "", (2,), 3, Constraint(Token(1)), priority=5
)


class Third(InferenceEngine):
    title = "Third"
    ids_since = (2, 0, 0)
    max_whitespace_since = (9, 0, 0)
    questions = ("/about",)
    flag = "/up"
    context_overflow = re.compile("no room for that")

    @classmethod
    @override
    def read(cls, path: str, document: Mapping[str, Any]) -> Self:
        return cls(document["third"])

    @override
    def grammars(self, release: Release) -> Grammars:
        return "turn"

    @override
    def request_fields(self, request: TokenRequest, served: ServedModel) -> Fields:
        return {"my_id": request.request_id}

    @override
    def tag_fields(self, endpoint: TokenEndpoint, tag: Mapping[str, Any], encoded: bytes) -> Fields:
        return {"my_grammar": tag}


def test_a_request_is_written_in_its_words() -> None:
    engine = Third.read("/about", {"third": "2.1.0"})
    writer = RequestWriter(engine, engine.capabilities(priorities=True))
    grammar = writer.grammar(BOUND)
    body = orjson.loads(
        b"".join(
            writer.body(
                BOUND,
                served=ServedModel("m"),
                endpoint=writer.engine.endpoint(BOUND),
                prompt=[b"[1]"],
                grammar=grammar,
            )
        )
    )
    assert (body["my_id"], body["priority"]) == ("req_1", 5)
    assert body["my_grammar"]["format"] == {"type": "token", "token": 1}
    assert "request_id" not in body


def test_it_says_itself_what_it_lacks_and_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(Third("1.9.9").unusable) == (
        "Third 1.9.9 returns no token ids. Upgrade it to 2.0.0 or newer."
    )
    monkeypatch.setattr(problems, "ENGINES", (*ENGINES, Third))
    monkeypatch.setattr(problems, "KINDS", (*ENGINES, Third))
    assert str(problems.NoTokenIds(upstream="a")).endswith(", or Third >= 2.0.0")
    assert isinstance(problems.refusal("a", 400, "no room for that"), ContextOverflow)
