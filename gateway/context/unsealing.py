"""Open what a client got sealed and sends back: reasoning, and summaries of conversations."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gateway.context.shortening import summary_message
from gateway.errors import InvalidRequest
from gateway.protocol.items import Compaction, Reasoning
from gateway.sealing import SealBroken, Unsealed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.items import InputItem
    from gateway.sealing import Sealer

COMPACTION: Final = "compaction"
"""Name that summaries are bound to in place of a model: any model may go on with a conversation."""


def unseal(
    items: Iterable[InputItem],
    sealer: Sealer,
    *,
    tenant: UUID,
    models: Sequence[str],
    param: str = "input",
) -> dict[int, Unsealed]:
    """Return the content of `encrypted_content` of reasoning and compaction items, by index.

    `param` names the array of items. Raises `InvalidRequest` for content sealed elsewhere or for
    another tenant, and for reasoning sealed for none of the `models`, of which there is at least
    one.
    """
    contents = {}
    for index, item in enumerate(items):
        try:
            if isinstance(item, Reasoning) and item.encrypted_content:
                contents[index] = _open_seal(item.encrypted_content, sealer, tenant, models)
            elif isinstance(item, Compaction):
                contents[index] = _summary(item, sealer, tenant)
        except SealBroken as broken:
            raise _unverified_content(f"{param}[{index}]", item.id, broken) from broken
    return contents


def _open_seal(seal: str, sealer: Sealer, tenant: UUID, models: Sequence[str]) -> Unsealed:
    *others, last = models
    for model in others:
        with suppress(SealBroken):
            return Unsealed.of(sealer.open(seal, tenant, model))
    return Unsealed.of(sealer.open(seal, tenant, last))


def with_last_opened(
    history: Sequence[ContextItem], sealer: Sealer, *, tenant: UUID
) -> Sequence[ContextItem]:
    """Return the history with its last compaction `opened`; no other one is shown."""
    for index in reversed(range(len(history))):
        if history[index].kind == "compaction":
            shown = opened(history[index], sealer, tenant=tenant)
            return [*history[:index], shown, *history[index + 1 :]]
    return history


def opened(item: ContextItem, sealer: Sealer, *, tenant: UUID) -> ContextItem:
    """Return a stored item; a compaction without ids becomes the message that it stands for.

    Raises `InvalidRequest` for one that cannot be opened: without it the earlier context is lost.
    """
    if item.kind != "compaction" or item.ids is not None or item.parsed is not None:
        return item
    sealed = item.item()
    assert isinstance(sealed, Compaction), "it is one by its kind"
    try:
        summary = _summary(sealed, sealer, tenant)
    except SealBroken as broken:
        raise _unverified_content("input", item.item_id, broken) from broken
    return replace(item, parsed=summary_message(summary.text))


def _summary(item: Compaction, sealer: Sealer, tenant: UUID) -> Unsealed:
    summary = Unsealed.of(sealer.open(item.encrypted_content, tenant, COMPACTION))
    if summary.ids is not None:
        raise SealBroken("it is no summary")
    return summary


def _unverified_content(place: str, item_id: str | None, broken: SealBroken) -> InvalidRequest:
    # OpenAI's code and wording: clients drop the item when they see it.
    which = f"for item {item_id}" if item_id else f"of {place}"
    return InvalidRequest(
        f"The encrypted content {which} could not be verified. Reason: {broken}. Send it unchanged "
        "with a key of the same tenant and to the same model, or leave the item out.",
        code="invalid_encrypted_content",
        param=place if place == "input" else f"{place}.encrypted_content",
    )
