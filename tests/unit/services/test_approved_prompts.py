"""The prompt of a response that begins with a call that its user approved, and those behind it."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.models.harmony.tokenizer import OPENING
from gateway.protocol.grants import ApprovedCall, Grants, McpTool, ServerGrant
from gateway.sealing import Sealer, SealingSecret
from gateway.services.models import Model
from gateway.services.runs.history_source import History
from gateway.services.runs.spec_builder import CreateCommand, RunInput, SpecBuilder
from gateway.services.runs.tool_grants import Granted
from gateway.settings.sections import Harmony
from gateway.tenancy import Principal, TenantId
from tests.fakes.contexts import answer, answering, asking, served, user
from tests.fakes.create_bodies import parse
from tests.fakes.harmony_script import harmony, harmony_of, script_ids
from tests.fakes.packed import packed

if TYPE_CHECKING:
    from gateway.protocol.context_item import ContextItem

PRINCIPAL = Principal(TenantId(ids.new_uuid()), "acme", ids.new_uuid())
SPECS = SpecBuilder(
    system_message=Harmony(identity="You.", date="off"),
    cache_salt_key=b"salt",
    sealer=Sealer([SealingSecret("k", b"sixteen bytes or more")]),
)
CALL = script_ids(
    '<|start|>assistant<|channel|>commentary to=functions.crm.add json<|message|>{"a": 1}<|call|>'
)
TOOL = McpTool("add", {"type": "object"})
GRANTS = Grants(
    servers=(ServerGrant("crm", "https://crm.example", tools=(TOOL,)),),
    approved=ApprovedCall("mcpr_1", "crm.add", '{"a": 1}'),
)
SERVER = {"type": "mcp", "server_label": "crm", "server_url": "https://crm.example"}


def stored(item: ContextItem, made: list[int]) -> ContextItem:
    """As the store has it."""
    return replace(item, json=b"", parsed=None, ids=array("I", made))


def prompt_of(
    history: list[ContextItem], new: list[dict[str, Any]], grants: Grants | None
) -> list[int]:
    fields: dict[str, Any] = {"input": new, "tools": [SERVER]}
    request = parse(**fields, served=frozenset({"mcp"}))
    given = RunInput(
        command=CreateCommand(PRINCIPAL, request, None, body_bytes=0, requested_at=0.0),
        model=Model("m", 0, 100_000, (), "medium", harmony_of("m")),
        history=History(None, packed(history), 0),
        stored={},
        uuid=PRINCIPAL.tenant_id,
        created_at=0,
        granted=Granted(grants=grants),
    )
    return list(SPECS.spec(given).prompt_ids)


@pytest.mark.parametrize("words", [[], [{"role": "user", "content": "Go on."}]])
def test_a_call_that_was_approved_is_followed_by_its_result_in_every_prompt(
    words: list[dict[str, Any]],
) -> None:
    history = [
        stored(user(), script_ids("<|start|>user<|message|>hi<|end|>")),
        stored(asking(), CALL),
    ]
    consent = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    prompt = prompt_of(history, [consent, *words], GRANTS)
    assert prompt[-len(CALL) - 2 :] == [*CALL, *OPENING]

    result = list(harmony().render_result("crm.add", "2"))
    said = script_ids("<|start|>assistant<|channel|>final<|message|>It is 2.<|end|>")
    sent = [stored(user(), script_ids("<|start|>user<|message|>Go on.<|end|>")) for _ in words]
    later = [
        *history,
        answering(approve=True),
        *sent,
        stored(served("2", "mcpr_1"), result),
        stored(answer(), said),
    ]
    again = prompt_of(
        later, [{"role": "user", "content": "Thanks."}], replace(GRANTS, approved=None)
    )
    behind = [*prompt[:-2], *result, *said]
    assert again[: len(behind)] == behind
