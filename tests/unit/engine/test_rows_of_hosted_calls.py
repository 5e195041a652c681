"""What is kept of calls that the gateway ran is what the next turn needs."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from gateway.engine.row_mapping import finished_row
from gateway.entries import Finished, Tokens, ToolEnded, ToolStarted, TurnEnded, TurnStarted
from gateway.generation import FinishReason
from gateway.protocol.grants import Grants, PythonGrant
from gateway.protocol.responses.response_rules import rules_of
from tests.fakes.harmony_script import harmony, script_ids
from tests.fakes.response_heads import ECHO, response_head
from tests.fakes.staged_run import folds, run_spec


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("<|channel|>analysis to=python code", "<|channel|>analysis to=python code"),
        ("<|channel|>commentary to=functions.python", " to=python<|channel|>analysis code"),
    ],
)
def test_what_a_tool_returned_is_kept_however_it_was_called(header: str, wanted: str) -> None:
    """A call that was not written as it was trained is told as if it had been, its result as the
    model read it: that is nowhere else.
    """
    grants = Grants(python=PythonGrant("cntr_1", "linux", 1 << 30))
    rules = rules_of({**ECHO, "tools": []}, grants)
    fold = folds(replace(response_head(), grants=grants), rules)()
    result = harmony().render_result("builtin:python", "2")
    for entry in (
        TurnStarted(9),
        Tokens(tuple(script_ids(f"{header}<|message|>1 + 1<|call|>"))),
        TurnEnded(FinishReason.STOP),
        ToolStarted(0),
        ToolEnded(0, result),
        Finished("incomplete", 9, reason="max_output_tokens"),
    ):
        fold.apply(entry)
    spec = replace(run_spec(), rules=rules)
    row = finished_row(
        spec, Finished("incomplete", 9, reason="max_output_tokens"), fold, epoch=0, rest=None
    )
    [item] = row.items
    call = script_ids(f"<|start|>assistant{wanted}<|message|>1 + 1<|call|>")
    assert item.context.ids == array("I", (*call, *result))
