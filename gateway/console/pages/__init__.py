"""The pages, in the order of the navigation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.console.pages import (
    account,
    audit,
    connect,
    fleet,
    playground,
    project,
    replay,
    response,
    responses,
    system,
    tenants,
    usage,
)

if TYPE_CHECKING:
    from gateway.console.page import Page

PAGES: Final[tuple[Page, ...]] = (
    fleet.NOW,
    responses.PAGE,
    response.PAGE,
    replay.PAGE,
    responses.CONVERSATION,
    fleet.QUEUE,
    fleet.BACKENDS,
    tenants.LIST,
    tenants.TENANT,
    project.PAGE,
    usage.PAGE,
    connect.PAGE,
    usage.CSV,
    playground.PAGE,
    playground.FILE_PAGE,
    audit.PAGE,
    system.PAGE,
    responses.SEARCH,
    account.PAGE,
)
