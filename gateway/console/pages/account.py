"""The operator's own sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway.console.page import Act, Page
from gateway.errors import InvalidRequest
from gateway.tenancy.permissions import OPERATOR_ROLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.console.page import Call
    from gateway.store.postgres.database import Row

PATH: Final = "/account"
SESSIONS_SHOWN_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class Account:
    sessions: Sequence[Row]
    own: UUID
    permissions: Sequence[str]


async def view(call: Call) -> Account:
    sessions = await call.services.sessions.own(call.session, rows_max=SESSIONS_SHOWN_MAX)
    return Account(sessions, call.session.id, sorted(OPERATOR_ROLES[call.session.role]))


async def end(call: Call) -> str:
    try:
        ended = UUID(call.form.get("session", ""))
    except ValueError:
        raise InvalidRequest("'session' is no id of a session.", param="session") from None
    await call.services.sessions.end(call.session, ended, call.visitor)
    return PATH


PAGE: Final = Page(
    path=PATH,
    title="Account",
    template="account.html",
    permission=None,
    view=view,
    acts=(Act(f"{PATH}/end", None, end),),
)
