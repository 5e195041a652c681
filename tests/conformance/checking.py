"""Hold bodies and events against the Open Responses specification and openai's models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from typing_extensions import override

Json = dict[str, Any]

SPECIFICATION: Final = (
    Path(__file__).parents[2].parent / "shared" / "corpus" / "openresponses-2026-04-24.openapi.json"
)
RENAMED: Final = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
"""OpenAI's names, which the gateway speaks, and those of the specification."""
UNLISTED: Final = frozenset({"response.compaction.compacting"})
"""Events that only openai's models know."""
TERMINAL: Final = ("response.completed", "response.incomplete", "response.failed")

_EVENT: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)


def read_specification() -> Json:
    """The OpenAPI document of Open Responses; skips where it is not at hand."""
    if not SPECIFICATION.exists():
        pytest.skip(f"needs {SPECIFICATION.name} beside the project")
    read: Json = json.loads(SPECIFICATION.read_text("utf-8"))
    return read


class Document:
    """The specification, with nothing relaxed. Built once: resolving references takes a while."""

    def __init__(self, specification: Json) -> None:
        self._specification = specification
        stream = specification["paths"]["/responses"]["post"]["responses"]["200"]["content"]
        self._events: dict[str, Draft202012Validator] = {}
        for one in stream["text/event-stream"]["schema"]["oneOf"]:
            name = one["$ref"].rsplit("/", 1)[1]
            kind = specification["components"]["schemas"][name]["properties"]["type"]["enum"][0]
            self._events[kind] = self.validator(name)
        self._response = self.validator("ResponseResource")
        self._item = self.validator("ItemField")
        self._compaction = self.validator("CompactResource")
        self._error = self.validator("ErrorPayload")
        self._websocket_error = self.validator("WebSocketErrorEvent")

    def validator(self, name: str) -> Draft202012Validator:
        """That of one of its schemas."""
        components = {"components": self._specification["components"]}
        return Draft202012Validator({**components, "$ref": f"#/components/schemas/{name}"})

    def response(self, body: Json) -> None:
        """Assert that it is a Response object, and that its items are as the prose demands."""
        _assert_valid(self._response, body)
        self._check_prose(body["output"])
        cut = [item.get("status") == "incomplete" for item in body["output"]]
        assert not any(cut[:-1]), "an incomplete item is not the last"
        assert not any(cut) or body["status"] != "completed", "an incomplete item in a completed"

    def completed(self, body: Json) -> None:
        """The same of one that is completed and has output."""
        self.response(body)
        assert body["status"] == "completed"
        assert body["output"]

    def items(self, listed: list[Json]) -> None:
        """Assert that all are items."""
        for item in listed:
            _assert_valid(self._item, item)
        self._check_prose(listed)

    def compaction(self, body: Json) -> None:
        """Assert that it is what `/responses/compact` answers."""
        _assert_valid(self._compaction, body)
        self._check_prose(body["output"])

    def error(self, body: Json) -> None:
        """Assert that it is the envelope of an HTTP error."""
        assert list(body) == ["error"]
        _assert_valid(self._error, body["error"])

    def websocket_error(self, frame: Json) -> None:
        """Assert that it is the frame that says that a turn failed."""
        _assert_valid(self._websocket_error, frame)

    def event(self, event: Json) -> None:
        """Assert that it is one of the events, under its own name."""
        kind = event["type"]
        assert kind in self._events, kind
        _assert_valid(self._events[kind], event)
        if "response" in event:
            self.response(event["response"])
        if "item" in event:
            self._check_prose([event["item"]])

    def stream(self, events: list[Json]) -> Json:
        """Assert that all are valid and ordered, and what is said twice the same; the Response of
        the last.
        """
        for event in events:
            self.event(event)
        numbers = [event["sequence_number"] for event in events]
        assert numbers == sorted(set(numbers)), "numbers do not rise"
        assert [event["type"] in TERMINAL for event in events].index(True) == len(events) - 1
        last: Json = events[-1]["response"]
        done = [event["item"] for event in events if event["type"].endswith("output_item.done")]
        assert last["output"] == done, "the items of the end are not those of the stream"
        _check_texts(events)
        _check_places(events, last["output"])
        return last

    def _check_prose(self, items: list[Json]) -> None:
        """Every item has an id, a type and a status, which the schemas do not demand of all."""
        for item in items:
            assert item["id"], item
            assert item["status"] in {"in_progress", "completed", "incomplete"}, item


class Checker(Document):
    """For OpenAI's dialect: the specification with OpenAI's names, and the models of its SDK."""

    @override
    def response(self, body: Json) -> None:
        """Assert that a Response object is valid, for both."""
        super().response(body)
        Response.model_validate(_with_listed_code(body), strict=True)

    @override
    def event(self, event: Json) -> None:
        """Assert that an event is valid, for both; reasoning under each one's own name."""
        told = {"response": _with_listed_code(event["response"])} if "response" in event else {}
        _EVENT.validate_python({**event, **told}, strict=True)
        if event["type"] not in UNLISTED:
            super().event({**event, "type": RENAMED.get(event["type"], event["type"])})

    @override
    def _check_prose(self, items: list[Json]) -> None:
        """The same, but that OpenAI's compactions have no status."""
        super()._check_prose([item for item in items if item["type"] != "compaction"])


def _with_listed_code(response: Json) -> Json:
    """A Response as the SDK knows it: it lists OpenAI's codes of errors, and a gateway has more
    (`invalid_tool_call`, of a model that does not obey).
    """
    error = response.get("error")
    return {**response, "error": {**error, "code": "server_error"}} if error else response


def _check_places(events: list[Json], output: list[Json]) -> None:
    """Assert that every index is the place of its item in the output, and none is missing."""
    added = [event["output_index"] for event in events if event["type"].endswith("item.added")]
    assert added == list(range(len(output))), "indexes have gaps"
    for event in events:
        if "output_index" in event:
            item_id = event.get("item_id") or event["item"]["id"]
            assert output[event["output_index"]]["id"] == item_id, event["type"]


def _check_texts(events: list[Json]) -> None:
    """What deltas spell is what their `.done` says, and what the item says in the end."""
    deltas: dict[tuple[str, str], str] = {}
    for event in events:
        kind, _, step = event["type"].rpartition(".")
        if step == "delta":
            key = (kind, event["item_id"])
            deltas[key] = deltas.get(key, "") + event["delta"]
        elif step == "done" and (kind, event.get("item_id")) in deltas:
            said = deltas.pop((kind, event["item_id"]))
            texts = [event[name] for name in ("text", "refusal", "arguments") if name in event]
            assert texts == [said], kind
    assert not deltas, "deltas without an end"


def _assert_valid(validator: Draft202012Validator, body: Json) -> None:
    mistakes = [
        f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(body)
    ]
    assert not mistakes, mistakes
