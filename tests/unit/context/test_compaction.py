"""What a compaction hides, and when there is nothing to hide."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from gateway.context.assembly import assemble
from gateway.context.shortening import compaction_item, droppable, summary_message
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import Compaction, CompactionTrigger
from gateway.sealing import Unsealed

if TYPE_CHECKING:
    from gateway.protocol.items import Role


def said(role: Role) -> ContextItem:
    return ContextItem("message", f"msg_{role}", b"{}", role=role)


THOUGHT = ContextItem("reasoning", "rs_1", b"{}")
CALL = ContextItem("function_call", "fc_1", b"{}", call_id="c", name="f")
OUTPUT = ContextItem("function_call_output", "fco_1", b"{}", call_id="c")
COMPACTION = compaction_item("cmp_1", "seal", "summary")
USER, SYSTEM, DEVELOPER = said("user"), said("system"), said("developer")
ANSWER = said("assistant")


@pytest.mark.parametrize(
    ("items", "dropped"),
    [
        ([], []),
        ([SYSTEM, DEVELOPER, USER], []),
        ([USER, THOUGHT, CALL, OUTPUT, ANSWER, USER], [1, 2, 3, 4]),
        ([USER, ANSWER, COMPACTION], []),
        ([USER, ANSWER, COMPACTION, USER, ANSWER], [4]),
    ],
)
def test_what_nobody_but_the_model_and_its_tools_said_can_be_dropped_once(
    items: list[ContextItem], dropped: list[int]
) -> None:
    assert droppable(items) == dropped


def test_a_summary_that_the_context_has_is_not_taken_in_again() -> None:
    again = Compaction(id="cmp_1", encrypted_content="seal")
    other = Compaction(encrypted_content="seal")
    summary = Unsealed(text="They met.")
    context = assemble(
        [USER, COMPACTION],
        [again, other, CompactionTrigger()],
        stored={},
        unsealed={0: summary, 1: summary},
        response=UUID(int=7),
    )
    assert [item.kind for item in context.items] == ["message", "compaction", "compaction"]
    (added,) = context.items[context.inherited :]
    assert added.item_id.startswith("cmp_")
    assert added.item() == summary_message("They met.")
