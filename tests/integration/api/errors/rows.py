"""One row of the table of statuses, types and codes, and how it is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import httpx2


class Row(NamedTuple):
    """What is answered: all of the envelope but its type, which is always the same."""

    status: int
    code: str | None
    param: str | None
    message: str


def assert_row(answer: httpx2.Response, row: Row) -> None:
    """The envelope has these four keys and no more."""
    assert answer.status_code == row.status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {
        "error": {
            "message": row.message,
            "type": "invalid_request_error",
            "param": row.param,
            "code": row.code,
        }
    }
