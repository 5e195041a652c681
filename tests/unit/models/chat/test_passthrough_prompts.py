"""What is sent to a chat endpoint: images, tools and history of a context."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import InvalidRequest, RateLimited
from gateway.models.chat.image_gallery import Gallery, _images, has_images
from gateway.models.chat.passthrough import PassThroughFormat
from gateway.models.format import IMAGE_QUESTION, ImageLimits, Unrendered
from gateway.protocol.context_item import ContextItem
from gateway.protocol.tool_types import FunctionTool
from gateway.text_ids import unpacked_lines
from tests.fakes import contexts as items
from tests.fakes.contexts import options

FILES = {
    "image/png": b"\x89PNG\r\n\x1a\n..",
    "image/jpeg": b"\xff\xd8\xff..",
    "image/gif": b"GIF89a..",
    "image/webp": b"RIFF....WEBP",
}
FORMAT = PassThroughFormat()
URL = "https://example.com/x.png"


def data_url(kind: str = "image/png", content: bytes | None = None) -> str:
    return f"data:{kind};base64,{b64encode(content or FILES[kind]).decode()}"


def picture(url: str | None, role: str = "user", **fields: Any) -> ContextItem:
    image = {"type": "input_image", "image_url": url, **fields}
    return items.from_wire({"type": "message", "role": role, "content": [image]})


def shown(
    *context: ContextItem, rendered: Any = None, new: Any = (), **limits: int
) -> list[dict[str, Any]]:
    gallery = Gallery(context, rendered or {}, ImageLimits(**limits), new)
    return [
        gallery.part(at, image)
        for at, item in enumerate(context)
        for image in getattr(item.item(), "content", ())
        if image.type == "input_image"
    ]


@pytest.mark.parametrize("kind", FILES)
def test_a_data_url_is_shown_as_it_is(kind: str) -> None:
    (part,) = shown(picture(data_url(kind)))
    assert part == {"type": "image_url", "image_url": {"url": data_url(kind)}}


def test_its_detail_is_passed_on() -> None:
    details = [
        shown(picture(data_url(), detail=detail))[0]["image_url"].get("detail")
        for detail in ("auto", "low", "high", "original")
    ]
    assert details == [None, "low", "high", "high"]


def test_a_url_is_a_question_first() -> None:
    with pytest.raises(Unrendered) as caught:
        shown(picture(URL), picture(URL))
    assert caught.value.questions == (IMAGE_QUESTION + URL.encode(),)
    answers = {IMAGE_QUESTION + URL.encode(): data_url()}
    assert shown(picture(URL), rendered=answers)[0]["image_url"]["url"] == data_url()


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (picture(None, file_id="file_1"), "images of files"),
        (picture("data:image/png,abc"), "neither of http"),
        (picture(data_url("image/png", b"GIF89a")), "its data is no image/png"),
        (picture(data_url("image/png", FILES["image/png"] + bytes(99))), "longer than 50 bytes"),
        (picture("data:image/bmp;base64,AA=="), "it is no image of"),
        (picture("data:image/png;base64,A"), "no base64"),
    ],
)
def test_a_new_one_that_cannot_be_shown_is_refused_and_an_old_one_is_noted(
    item: ContextItem, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        shown(item, bytes_max=50)
    assert (caught.value.code, caught.value.param) == ("invalid_image", "input")
    (part,) = shown(item, items.answer(), bytes_max=50)
    assert why in part["text"]


def test_what_could_not_be_fetched_says_why() -> None:
    with pytest.raises(InvalidRequest, match="answered 404"):
        shown(picture(URL), rendered={IMAGE_QUESTION + URL.encode(): "its server answered 404"})


def test_there_are_not_too_many() -> None:
    with pytest.raises(InvalidRequest, match="2 images, and at most 1"):
        shown(picture(data_url()), picture(data_url()), images_max=1)


ROOM = len(FILES["image/png"])
"""Bytes of one of them."""


def test_they_are_not_too_long_together() -> None:
    one = picture(data_url())
    assert len(shown(one, one, context_bytes_max=2 * ROOM)) == 2
    with pytest.raises(InvalidRequest, match=f"longer than {2 * ROOM - 1} bytes together"):
        shown(one, one, context_bytes_max=2 * ROOM - 1)


@pytest.mark.parametrize("limits", [{"images_max": 2}, {"context_bytes_max": 2 * ROOM}])
def test_old_ones_give_way_to_later_ones(limits: dict[str, int]) -> None:
    urls = [data_url(content=FILES["image/png"][:-2] + b"%02d" % at) for at in range(4)]
    old = (picture(urls[0]), picture(urls[1]), picture(urls[2]), items.answer())
    parts = shown(*old, picture(urls[3]), **limits)
    kinds = [one["type"] for one in parts]
    assert kinds == ["text", "text", "image_url", "image_url"]
    assert parts[3]["image_url"]["url"] == urls[3]
    assert "[an image stood here: the" in parts[0]["text"]


def test_what_was_fetched_counts_as_long_as_it_is() -> None:
    context = picture(data_url()), items.answer(), picture(URL)
    question = IMAGE_QUESTION + URL.encode()
    with pytest.raises(Unrendered):
        shown(*context, context_bytes_max=ROOM)
    parts = shown(*context, rendered={question: data_url()}, context_bytes_max=ROOM)
    assert [one["type"] for one in parts] == ["text", "image_url"]


def test_refusals_name_the_part_of_the_request() -> None:
    text, image = {"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": URL}
    asked = {"type": "message", "role": "user", "content": [text, image]}
    output = {"type": "function_call_output", "call_id": "c", "output": [image]}
    question = IMAGE_QUESTION + URL.encode()
    for wire, param in ((asked, "input[1].content[1]"), (output, "input[1].output[0]")):
        item = items.from_wire(wire)
        new = [items.user().item(), item.item()]
        gallery = Gallery((items.user(), item), {question: "no"}, ImageLimits(), new)
        (_, image_of_it), *_ = _images((items.user(), item))
        with pytest.raises(InvalidRequest) as caught:
            gallery.part(1, image_of_it)
        assert caught.value.param == param
        with pytest.raises(RateLimited, match="later") as limited:
            Gallery((items.user(), item), {question: "no room: later"}, ImageLimits(), new)
        assert (limited.value.param, limited.value.retry_after_s) == (param, 1.0)


def test_what_a_summary_stands_for_is_not_fetched() -> None:
    image = {"type": "input_image", "image_url": URL}
    output = items.from_wire({"type": "function_call_output", "call_id": "c1", "output": [image]})
    summary = ContextItem("compaction", "", b"", ids=array("I", FORMAT.render_item(items.user())))
    context = items.call(), output, items.answer(), summary
    assert Gallery(context, {}, ImageLimits()).is_empty
    assert not has_images(context)


def test_only_messages_of_the_user_and_results_have_some() -> None:
    assert has_images([picture(data_url())])
    assert not has_images([items.user(), items.thought(), items.answer()])
    assert not has_images([picture(data_url(), role="system")])


def prompt(format_: PassThroughFormat, *context: ContextItem) -> list[bytes]:
    return unpacked_lines(format_.render(context, options()).ids)


def test_a_strict_tool_is_told_to_be_strict() -> None:
    tools = (FunctionTool(name="a", strict=True), FunctionTool(name="b"))
    fields = json.loads(unpacked_lines(FORMAT.render([items.user()], options(tools=tools)).ids)[0])
    assert [tool["function"].get("strict") for tool in fields["tools"]] == [True, None]


def first_line(format_: PassThroughFormat, asked: str | None) -> dict[str, Any]:
    told = replace(options(), requested_effort=asked)
    line: dict[str, Any] = json.loads(unpacked_lines(format_.render([items.user()], told).ids)[0])
    return line


def test_an_effort_is_told_as_the_server_takes_it() -> None:
    thoughtless = PassThroughFormat(thinks=False, template_kwargs={"a": 1})
    switched = replace(FORMAT, switched=lambda asked, effort: {asked or "": effort})
    assert first_line(FORMAT, None) == {}
    assert first_line(FORMAT, "none") == {"reasoning_effort": "none"}
    assert first_line(FORMAT, "high") == {"reasoning_effort": "medium"}
    assert first_line(thoughtless, "high") == {"chat_template_kwargs": {"a": 1}}
    assert first_line(switched, "high") == {"chat_template_kwargs": {"high": "medium"}}


def test_a_summary_is_told_as_what_it_stands_for() -> None:
    line = FORMAT.render_item(items.user("All of it."))
    summary = ContextItem("compaction", "", b"", ids=array("I", line))
    assert json.loads(prompt(FORMAT, summary)[1]) == {"role": "user", "content": "All of it."}
    assert FORMAT.render_item(items.thought()) == ()
    made = FORMAT.render([items.user()], options())
    shown = FORMAT.messages(made, with_ids=False)
    assert [json.loads(one["message"]) for one in shown][1]["content"] == "hi"
    assert made.tokens == len(made.ids)
    assert FORMAT.repeated_ids(None, is_answered=True) is None  # type: ignore[arg-type]


def test_thoughts_of_the_history_are_for_templates_alone() -> None:
    context = items.user(), items.thought(), items.call(), items.output()
    assert not any(b"reasoning" in line for line in prompt(PassThroughFormat(), *context))
    chat = PassThroughFormat(thinks=False, switched=lambda _asked, _effort: {})
    assert any(b'"reasoning":"hm"' in line for line in prompt(chat, *context))
    assert len(prompt(PassThroughFormat(), items.user(), items.thought())) == 2
