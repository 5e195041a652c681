from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints

from gateway.protocol.base import AS_INTEGER, WireModel
from gateway.protocol.request_errors import wrong_value
from gateway.tenancy.permissions import SCOPES

Json = dict[str, Any]

NAME_CHARS_MAX: Final = 256
MODELS_MAX: Final = 256
LIFETIME_MAX_S: Final = 10 * 366 * 24 * 3600
SECOND_MAX: Final = 253_402_300_799
"""Last second of the year 9999."""


def _printable(name: str) -> str:
    # PostgreSQL's `text` takes no NUL, and lists show one name a line.
    if not name.isprintable() or not name.strip():
        raise ValueError("must have printable characters alone, and one that is no space")
    return name


DisplayName = Annotated[
    str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX), AfterValidator(_printable)
]
ModelId = DisplayName
Lifetime = Annotated[int, Field(ge=1, le=LIFETIME_MAX_S), AS_INTEGER]
ShortText = Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX, pattern=r"^[^\x00]*$")]


class NoBody(WireModel):
    """Body of a call that takes none: an empty object at most."""


def scopes_of(scopes: tuple[str, ...]) -> frozenset[str]:
    for index, scope in enumerate(scopes):
        if scope not in SCOPES:
            raise wrong_value(f"scopes[{index}]", scope, tuple(SCOPES))
    return frozenset(scopes)


def seconds_of(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def moment_of(second: int) -> datetime:
    return datetime.fromtimestamp(min(second, SECOND_MAX), UTC)


def deleted_body(kind: str, id_: str | None = None) -> Json:
    body: Json = {"object": f"{kind}.deleted", "deleted": True}
    return body if id_ is None else {"id": id_, **body}
