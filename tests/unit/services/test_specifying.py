from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.protocol.alike import alike
from gateway.sealing import Sealer, SealingSecret
from gateway.services.models import Model
from gateway.services.parents import Parent, opens
from gateway.services.specifying import COMPILED_BYTES, Draft, Secrets, Specifier, SystemMessage
from gateway.tenancy import Principal, TenantId
from tests.fakes.contexts import said, user
from tests.fakes.create_bodies import LIMITS
from tests.fakes.harmony_script import harmony_of

if TYPE_CHECKING:
    from gateway.protocol.context import ContextItem

PRINCIPAL = Principal(TenantId(ids.new_uuid()), "acme", ids.new_uuid())
MODEL = Model("m", 0, 100_000, (), "medium")
BODY_BYTES = 1_000_000
TOOLS = [{"type": "function", "name": f"f{at}", "parameters": {}} for at in range(3)]
DEVELOPER = {"role": "developer", "content": "sing"}
USER = {"role": "user", "content": "hi"}


@pytest.fixture(name="specifier", scope="module")
def new_specifier() -> Specifier:
    return Specifier(
        harmony_of,
        system_message=SystemMessage(
            "You.", "2024-06", with_date=False, commentary_without_tools=False
        ),
        secrets=Secrets(b"salt", Sealer([SealingSecret("k", b"sixteen bytes or more")])),
        answer_share=0.25,
    )


def draft_of(
    specifier: Specifier, *history: ContextItem, stored: ContextItem | None = None, **fields: Any
) -> Draft:
    """A draft as `Preparation` makes it of a long body."""
    document = {"model": "m", "input": [USER], "tools": TOOLS} | fields
    request = alike(document, LIMITS, scope=PRINCIPAL.tenant_id.bytes)
    assert request is not None
    draft = Draft(
        principal=PRINCIPAL,
        request=request,
        body_bytes=BODY_BYTES,
        model=MODEL,
        parent=Parent(None, history, 0),
        stored={} if stored is None else {stored.item_id: stored},
        uuid=ids.new_uuid(),
        created_at=0,
        frame=specifier.kept_frame(request, MODEL, PRINCIPAL.policy),
        is_opening=opens(request),
    )
    return replace(draft, is_told=specifier.is_told(draft))


def test_tools_count_until_the_model_was_told_of_them(specifier: Specifier) -> None:
    first = draft_of(specifier, instructions="Count.", metadata={"a": "1"})
    assert first.size_bytes == BODY_BYTES
    specifier.specify(first)
    again = draft_of(specifier, instructions="Count.", metadata={"a": "2"})
    assert again.is_plain
    assert again.frame is not None
    assert again.size_bytes == BODY_BYTES - again.frame.json_bytes


@pytest.mark.parametrize(
    "fields", [{"instructions": "Now it is noon."}, {"input": [DEVELOPER, USER]}]
)
def test_tools_that_are_told_with_other_instructions_count_again(
    specifier: Specifier, fields: dict[str, Any]
) -> None:
    specifier.specify(draft_of(specifier))
    draft = draft_of(specifier, **fields)
    assert draft.frame is not None
    assert draft.size_bytes == BODY_BYTES
    specifier.specify(draft)
    assert draft_of(specifier, **fields).size_bytes < BODY_BYTES


def test_instructions_that_are_not_looked_at_may_be_others(specifier: Specifier) -> None:
    specifier.specify(draft_of(specifier))
    assert draft_of(specifier).is_told
    assert not draft_of(specifier, said("developer", "sing"), user()).is_told
    assert not draft_of(specifier, stored=said("developer", "sing")).is_told


def test_what_must_be_compiled_again_is_as_long_as_before(specifier: Specifier) -> None:
    pattern = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^x"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "name": "x", "schema": pattern, "strict": True}
    first = draft_of(specifier, text={"format": asked})
    specifier.specify(first)
    again = draft_of(specifier, text={"format": asked})
    assert (first.frame is None, again.frame is None) == (True, False)
    for draft in (first, again):
        assert not draft.is_plain
        assert draft.size_bytes >= COMPILED_BYTES
