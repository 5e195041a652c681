"""Reasoning that a client was given sealed, and gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import InvalidRequest
from gateway.protocol.items import Reasoning
from gateway.sealing import SealBroken, Unsealed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from gateway.protocol.items import InputItem
    from gateway.sealing import Sealer


def unseal(
    items: Iterable[InputItem], sealer: Sealer, *, tenant: UUID, model: str
) -> dict[int, Unsealed]:
    """What the reasoning items hold in `encrypted_content`, by their index.

    Raises `InvalidRequest` for content that was sealed elsewhere, for others or for another model.
    """
    opened = {}
    for index, item in enumerate(items):
        if isinstance(item, Reasoning) and item.encrypted_content:
            try:
                content = sealer.open(item.encrypted_content, tenant, model)
                opened[index] = Unsealed.of(content)
            except SealBroken as broken:
                raise _unverified(index, item, broken) from broken
    return opened


def _unverified(index: int, item: Reasoning, broken: SealBroken) -> InvalidRequest:
    """OpenAI's code and wording, by which clients know that they must do without the item."""
    which = f"for item {item.id}" if item.id else f"of input[{index}]"
    return InvalidRequest(
        f"The encrypted content {which} could not be verified. Reason: {broken}. Send it unchanged "
        "with a key of the same tenant and to the same model, or leave the item out.",
        code="invalid_encrypted_content",
        param=f"input[{index}].encrypted_content",
    )
