"""The pages, in the order of the navigation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.console.pages import (
    account,
    audit,
    backends,
    connect,
    conversation,
    now,
    playground,
    project,
    queue,
    replay,
    response,
    responses,
    search,
    system,
    tenants,
    usage,
)

if TYPE_CHECKING:
    from gateway.console.page import Page

PAGES: Final[tuple[Page, ...]] = (
    now.PAGE,
    responses.PAGE,
    response.PAGE,
    replay.PAGE,
    conversation.PAGE,
    queue.PAGE,
    backends.PAGE,
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
    search.PAGE,
    account.PAGE,
)
