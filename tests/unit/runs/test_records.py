"""What is kept of a run is what the next turn needs."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from gateway.generation import RenderedItem
from gateway.runs.records import output_context
from tests.fakes.call_items import CALLS


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, name, _ in CALLS])
def test_a_call_is_kept_under_the_name_that_the_model_knows(
    call: dict[str, Any], name: str
) -> None:
    item = {"id": "call_1", "call_id": "c1", "status": "completed", **call}
    context = output_context(RenderedItem(item, (1, 2)))
    assert (context.kind, context.call_id, context.name) == (call["type"], "c1", name)
    assert context.ids == array("I", (1, 2))


def test_a_message_has_no_name() -> None:
    item: dict[str, object] = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "incomplete",
        "content": [], "phase": "final_answer",
    }  # fmt: skip
    context = output_context(RenderedItem(item))
    assert (context.name, context.role, context.phase) == (None, "assistant", "final_answer")
    assert (context.complete, context.ids) == (False, None)
