"""Sealed reasoning in a request: opened, or refused with the place where it stands."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from gateway.conversation.unsealing import unseal
from gateway.errors import InvalidRequest
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
    return unseal(items, sealer, tenant=tenant, model=model)


def test_what_cannot_be_verified_is_called_by_its_id() -> None:
    items = parse(input=[{**thought("gAAA"), "id": "rs_1"}]).input
    with pytest.raises(InvalidRequest, match=r"^The encrypted content for item rs_1 could not be"):
        unseal(items, SEALER, tenant=TENANT, model=MODEL)


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
