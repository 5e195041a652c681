"""Parts that objects of the admin API have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

Json = dict[str, Any]


def seconds_of(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def deleted_body(kind: str, id_: str | None = None) -> Json:
    """Return the answer to a deletion; `kind` is the type of the deleted object."""
    told: Json = {"object": f"{kind}.deleted", "deleted": True}
    return told if id_ is None else {"id": id_, **told}
