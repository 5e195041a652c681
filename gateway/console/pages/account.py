"""The operator's own sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway.console.page import Act, Page
from gateway.errors import InvalidRequest
from gateway.tenancy.permissions import OPERATOR_ROLES

if TYPE_CHECKING:
    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/account"
SESSIONS_SHOWN_MAX: Final = 50


async def view(call: Call) -> Json:
    sessions = await call.services.sessions.own(call.session, rows_max=SESSIONS_SHOWN_MAX)
    return {
        "sessions": sessions,
        "own": call.session.id,
        "permissions": sorted(OPERATOR_ROLES[call.session.role]),
    }


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
