"""Hold bodies and events against the Open Responses specification and openai's models."""

from __future__ import annotations

from typing import Any, Final

from jsonschema import Draft202012Validator
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

Json = dict[str, Any]

RENAMED: Final = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
"""OpenAI's names, which the gateway speaks, and those of the specification."""

_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)


class Checker:
    """Built once: resolving the specification's references takes a while."""

    def __init__(self, specification: Json) -> None:
        root = {"components": specification["components"]}
        stream = specification["paths"]["/responses"]["post"]["responses"]["200"]["content"]
        self._events: dict[str, Draft202012Validator] = {}
        for one in stream["text/event-stream"]["schema"]["oneOf"]:
            name = one["$ref"].rsplit("/", 1)[1]
            kind = specification["components"]["schemas"][name]["properties"]["type"]["enum"][0]
            self._events[kind] = Draft202012Validator({**root, **one})
        body = stream["application/json"]["schema"]
        self._body = Draft202012Validator({**root, **body})

    def response(self, body: Json) -> None:
        """Assert that a Response object is valid, for both."""
        _assert_valid(self._body, body)
        Response.model_validate(body, strict=True)

    def completed(self, body: Json) -> None:
        """The same of one that is completed and has output."""
        self.response(body)
        assert body["status"] == "completed"
        assert body["output"]

    def event(self, event: Json) -> None:
        """Assert that an event is valid, for both; reasoning under each one's own name."""
        _EVENT.validate_python(event, strict=True)
        kind = RENAMED.get(event["type"], event["type"])
        assert kind in self._events, kind
        _assert_valid(self._events[kind], {**event, "type": kind})

    def stream(self, events: list[Json]) -> Json:
        """Assert that all are valid; the Response of the last."""
        for event in events:
            self.event(event)
        last: Json = events[-1]["response"]
        self.response(last)
        return last


def _assert_valid(validator: Draft202012Validator, body: Json) -> None:
    mistakes = [
        f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(body)
    ]
    assert not mistakes, mistakes
