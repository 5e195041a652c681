"""What only Open Responses lets a client send, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.protocol.items import FunctionCallOutput, InputFile, Message
from gateway.protocol.parameters import AnyToolChoice

VIDEO = {"type": "input_video", "video_url": "https://example.com/a.mp4"}
CHOICE: TypeAdapter[Any] = TypeAdapter(AnyToolChoice)


@pytest.mark.requirement("items.status-is-ignored")
@pytest.mark.parametrize(
    ("status", "taken"), [("completed", "completed"), ("done", None), ("", None), (None, None)]
)
def test_any_status_may_be_given_and_only_known_ones_are_kept(
    status: str | None, taken: str | None
) -> None:
    message = {"role": "user", "content": "x", "status": status}
    assert Message.model_validate(message).status == taken


def test_a_status_is_a_string() -> None:
    with pytest.raises(ValidationError):
        Message.model_validate({"role": "user", "content": "x", "status": 1})


@pytest.mark.requirement("parts.input-video")
def test_a_video_is_a_file() -> None:
    taken = (InputFile(file_url=VIDEO["video_url"]),)
    assert FunctionCallOutput.model_validate({"call_id": "c", "output": [VIDEO]}).output == taken
    assert Message.model_validate({"role": "user", "content": [VIDEO]}).content == taken


def test_a_video_without_its_url_is_refused() -> None:
    with pytest.raises(ValidationError):
        FunctionCallOutput.model_validate({"call_id": "c", "output": [{"type": "input_video"}]})


def test_tools_that_are_allowed_in_the_mode_none_are_not() -> None:
    tools = [{"type": "function", "name": "f"}]
    assert (
        CHOICE.validate_python({"type": "allowed_tools", "mode": "none", "tools": tools}) == "none"
    )
