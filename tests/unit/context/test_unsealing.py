"""Sealed reasoning in a request: opened, or refused with the place where it stands."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from gateway.context.assembly import COMPACTION, opened, unseal, with_last_opened
from gateway.context.shortening import INTRODUCTION, compaction_item
from gateway.errors import InvalidRequest
from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import InputText, Message
from gateway.sealing import Binding, Sealer, SealingSecret, Unsealed
from tests.fakes.create_bodies import parse

TENANT, MODEL = UUID(int=1), "gpt-oss-20b"
SEALER = Sealer([SealingSecret("k", b"sixteen bytes or more")])
SAID = Unsealed(ids=(1, 2, 3))
SEAL = SEALER.seal(Binding(TENANT, MODEL, "k"), SAID.content)
QUESTION = {"role": "user", "content": "hi"}


def thought(seal: str | None) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "encrypted_content": seal}


def unsealed(
    *seals: str | None, tenant: UUID = TENANT, model: str = MODEL, sealer: Sealer = SEALER
) -> dict[int, Unsealed]:
    items = parse(input=[QUESTION, *map(thought, seals)]).input
    return unseal(items, sealer, tenant=tenant, models=(model,))


def test_what_cannot_be_verified_is_called_by_its_id() -> None:
    items = parse(input=[{**thought("gAAA"), "id": "rs_1"}]).input
    with pytest.raises(InvalidRequest, match=r"^The encrypted content for item rs_1 could not be"):
        unseal(items, SEALER, tenant=TENANT, models=(MODEL,))


def test_what_was_sealed_is_known_by_the_index_of_its_item() -> None:
    assert unsealed(SEAL, None, "", SEAL) == {1: SAID, 4: SAID}


@pytest.mark.parametrize(
    ("seal", "tenant", "model", "sealer"),
    [
        ("gAAAAABo", TENANT, MODEL, SEALER),
        (f"{SEAL}A", TENANT, MODEL, SEALER),
        (SEAL, UUID(int=2), MODEL, SEALER),
        (SEAL, TENANT, "gpt-oss-120b", SEALER),
        (SEAL, TENANT, MODEL, Sealer([SealingSecret("new", b"sixteen bytes or more")])),
        (SEALER.seal(Binding(TENANT, MODEL, "k"), b"\7"), TENANT, MODEL, SEALER),
    ],
    ids=["another provider's", "changed", "another tenant's", "another model's", "old", "newer"],
)
def test_what_cannot_be_verified_is_refused(
    seal: str | None, tenant: UUID, model: str, sealer: Sealer
) -> None:
    with pytest.raises(InvalidRequest, match="could not be verified") as caught:
        unsealed(None, seal, tenant=tenant, model=model, sealer=sealer)
    assert str(caught.value).startswith("The encrypted content of input[2] could not be verified.")
    assert caught.value.code == "invalid_encrypted_content"
    assert caught.value.param == "input[2].encrypted_content"


def summary_seal(content: bytes = Unsealed(text="They met.").content) -> str:
    seal = SEALER.seal(Binding(TENANT, COMPACTION, "k"), content)
    assert seal is not None
    return seal


def stored(seal: str, item_id: str = "cmp_1") -> ContextItem:
    """A compaction as it comes from the store when it was never rendered."""
    return replace(compaction_item(item_id, seal, "unknown"), parsed=None)


def test_a_summary_may_be_read_by_any_model_of_its_tenant() -> None:
    items = parse(input=[{"type": "compaction", "encrypted_content": summary_seal()}]).input
    content = unseal(items, SEALER, tenant=TENANT, models=("another",))
    assert content == {0: Unsealed(text="They met.")}
    with pytest.raises(InvalidRequest, match="could not be verified"):
        unseal(items, SEALER, tenant=UUID(int=2), models=(MODEL,))


@pytest.mark.parametrize("seal", [SEAL, summary_seal(SAID.content)], ids=["reasoning", "ids"])
def test_what_is_no_summary_is_refused_as_one(seal: str) -> None:
    items = parse(input=[{"type": "compaction", "encrypted_content": seal}]).input
    with pytest.raises(InvalidRequest) as caught:
        unseal(items, SEALER, tenant=TENANT, models=(MODEL,))
    assert caught.value.param == "input[0].encrypted_content"


def test_of_a_history_the_last_summary_is_opened() -> None:
    plain = ContextItem("message", "msg_1", b"{}", role="user")
    old, new = stored("lost with its key", "cmp_0"), stored(summary_seal())
    history = [old, plain, new, plain]
    shown = with_last_opened(history, SEALER, tenant=TENANT)
    text = InputText(text=f"{INTRODUCTION}They met.")
    assert shown[2].item() == Message(role="user", content=(text,))
    assert [*shown[:2], shown[3]] == [old, plain, plain]
    assert with_last_opened([plain], SEALER, tenant=TENANT) == [plain]


def test_a_summary_that_was_rendered_stays_as_it_was() -> None:
    rendered = stored("any").with_ids(array("I", [1, 2]))
    assert opened(rendered, SEALER, tenant=TENANT) is rendered


def test_a_stored_summary_that_cannot_be_opened_is_not_passed_over() -> None:
    with pytest.raises(InvalidRequest, match="for item cmp_1 could not be verified") as caught:
        opened(stored("hgw1.AAAA"), SEALER, tenant=TENANT)
    assert (caught.value.code, caught.value.param) == ("invalid_encrypted_content", "input")


@pytest.mark.parametrize("model", ["one", "two", "three"])
def test_reasoning_may_be_for_any_of_several_models(model: str) -> None:
    models = ("one", "two", "three")
    seal = SEALER.seal(Binding(TENANT, model, "k"), SAID.content)
    items = parse(input=[thought(seal)]).input
    found = unseal(items, SEALER, tenant=TENANT, models=models)
    assert found == {0: SAID}
    others = tuple(other for other in models if other != model)
    with pytest.raises(InvalidRequest) as refused:
        unseal(items, SEALER, tenant=TENANT, models=others, param="items")
    assert refused.value.param == "items[0].encrypted_content"
    assert "of items[0] could" in refused.value.message
