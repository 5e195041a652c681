"""A chat that searched the web: citations are annotations of its content, calls are not seen."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from gateway.protocol.chat_answers import SEPARATOR, ChatAdapter, CompletionAdapter
from gateway.protocol.stream_events import Event
from tests.fakes.response_heads import ECHO

Json = dict[str, Any]

PREAMBLE = ("Ich schaue nach: ", "([é](https://a.example))")
ANSWER = ("Grüße, ", "([b](https://b.example))", " und ", "([c](https://c.example))")


def cited(texts: tuple[str, ...]) -> list[Json]:
    """A citation of each text that is a link."""
    found, at = [], 0
    for text in texts:
        if text.startswith("(["):
            title, url = text[2:-2].split("](")
            place = {"start_index": at, "end_index": at + len(text)}
            found.append({"type": "url_citation", "url": url, "title": title, **place})
        at += len(text)
    return found


def message(index: int, texts: tuple[str, ...], phase: str) -> Json:
    file = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1"}
    part = {
        "type": "output_text",
        "text": "".join(texts),
        "annotations": [*cited(texts), file],
        "logprobs": [],
    }
    return {"id": f"msg_{index}", "type": "message", "role": "assistant", "phase": phase} | {
        "status": "completed",
        "content": [part],
    }


SEARCHED = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
THOUGHT = {"id": "rs_1", "type": "reasoning", "summary": []} | {
    "content": [{"type": "reasoning_text", "text": "Hm."}]
}


def response(output: list[Json], **fields: Any) -> Json:
    tools = [{"type": "web_search", "search_context_size": "medium"}]
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    known = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed"}
    made = {**ECHO, **known, "error": None, "usage": usage, "tools": tools, "output": output}
    return {**made, "metadata": {}, **fields}


def events(output: list[Json], *, formatted: bool) -> list[Event]:
    """The stream that ends with this output, a delta for each text and one for each citation."""
    told: list[Event] = []

    def tell(kind: str, **fields: Any) -> None:
        data = {"type": kind, "sequence_number": len(told), **fields}
        text = orjson.dumps(fields["delta"]) if "delta" in fields else b""
        told.append(Event(kind, len(told), orjson.dumps(data), text=text))

    form = {"text": {"format": {"type": "json_object" if formatted else "text"}}}
    tell("response.created", response=response([], **form))
    for index, item in enumerate(output):
        tell("response.output_item.added", output_index=index, item={**item, "content": []})
        if item["type"] == "web_search_call":
            tell("response.web_search_call.searching", output_index=index, item_id=item["id"])
        if item["type"] == "reasoning":
            tell("response.reasoning_text.delta", output_index=index, delta="Hm.")
        if item["type"] == "message":
            texts = PREAMBLE if item["phase"] == "commentary" else ANSWER
            annotations = iter(item["content"][0]["annotations"])
            for text in texts:
                tell("response.output_text.delta", output_index=index, delta=text, logprobs=[])
                if text.startswith("(["):
                    annotation = next(annotations)
                    tell("response.output_text.annotation.added", annotation=annotation)
            tell("response.output_text.annotation.added", annotation=next(annotations))
        tell("response.output_item.done", output_index=index, item=item)
    tell("response.completed", response=response(output, **form))
    return told


OUTPUT: list[Json] = [
    THOUGHT,
    SEARCHED,
    message(2, PREAMBLE, "commentary"),
    SEARCHED,
    message(4, ANSWER, "final_answer"),
]


@pytest.mark.parametrize("formatted", [False, True])
def test_citations_are_annotations_at_their_place_in_the_content(*, formatted: bool) -> None:
    said = events(OUTPUT, formatted=formatted)
    form = {"text": {"format": {"type": "json_object" if formatted else "text"}}}
    body = ChatAdapter().body(response(OUTPUT, **form))
    TypeAdapter(ChatCompletion).validate_python(body)
    (choice,) = body["choices"]
    content = choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]
    whole = "".join(ANSWER)
    assert content == (whole if formatted else "".join(PREAMBLE) + SEPARATOR + whole)
    annotations = choice["message"]["annotations"]
    found = [one["url_citation"] for one in annotations]
    assert [content[one["start_index"] : one["end_index"]] for one in found] == [
        f"([{one['title']}]({one['url']}))" for one in found
    ]
    assert len(found) == (2 if formatted else 3)

    stream = ChatAdapter().chunks()
    chunks = [orjson.loads(chunk) for event in said for chunk in stream.from_event(event)]
    for chunk in chunks:
        TypeAdapter(ChatCompletionChunk).validate_python(chunk)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == content
    assert [one for delta in deltas for one in delta.get("annotations", [])] == annotations
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "stop"]
    assert all("tool_calls" not in delta for delta in deltas)


def test_a_citation_comes_behind_the_text_that_it_covers() -> None:
    stream = ChatAdapter().chunks()
    length = 0
    for event in events(OUTPUT, formatted=False):
        for chunk in map(orjson.loads, stream.from_event(event)):
            delta = chunk["choices"][0]["delta"]
            length += len(delta.get("content") or "")
            for annotation in delta.get("annotations", []):
                assert annotation["url_citation"]["end_index"] == length


def test_a_completion_has_no_annotations() -> None:
    stream = CompletionAdapter(include_usage=False).chunks()
    chunks = [
        orjson.loads(chunk)
        for event in events(OUTPUT, formatted=False)
        for chunk in stream.from_event(event)
    ]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks).endswith("".join(ANSWER))
