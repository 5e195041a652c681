"""The Playground's page, and forks of stored responses: their context up to an item.

A fork shows content, so it takes `content.read` and a reveal, which the tenant's audit log has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import orjson

from gateway.admin.projects import project_body
from gateway.console.answer_lines import FILE, AnswerLines
from gateway.console.page import Act, Page
from gateway.console.playground import (
    HOSTED,
    Cancellation,
    FileAnswer,
    StreamedAnswer,
    body_of,
    input_of,
    number,
)
from gateway.console.snippets import request_snippets
from gateway.errors import InvalidRequest, PermissionDenied
from gateway.protocol.documented import EFFORTS, ServiceTier, literal_values
from gateway.protocol.pages import PageParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from gateway.console.page import Call
    from gateway.protocol.admin_bodies import Json

PATH: Final = "/playground"
ANSWERS: Final = "answer.html"
PROJECTS_SHOWN_MAX: Final = 100
TENANTS_SHOWN_MAX: Final = 100
ITEMS_MAX: Final = 1000
"""Items that a request refers to."""
PAGE_ITEMS: Final = 100
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
TIERS: Final = tuple(one for one in literal_values(ServiceTier) if one != "auto")


@dataclass(frozen=True, slots=True)
class Choice:
    tenant: str = ""
    projects: Sequence[Json] = ()
    project: Json | None = None
    tools: Sequence[str] = ()
    tenants: Sequence[str] = ()


async def view(call: Call) -> Json:
    fork = None
    if response_id := call.query.get("fork"):
        fork = await find_fork(call, response_id, call.query.get("item", ""))
    tenant = fork.tenant if fork else call.query.get("tenant", "").strip()
    project_id = fork.project_id if fork else call.query.get("project", "")
    choice = await _choice(call, tenant, project_id)
    key = call.services.playground.keys.find(call.session, project_id)
    return {
        "choice": choice,
        "model": fork.model if fork else call.query.get("model", ""),
        "models": call.services.models(),
        "efforts": EFFORTS,
        "tiers": TIERS,
        "ends_at": None if key is None else key.ends_at,
        "fork": fork,
        "is_file_gone": "gone" in call.query,
    }


async def _choice(call: Call, tenant: str, project_id: str) -> Choice:
    services = call.services
    if not tenant:
        tenants = await services.operator.tenants.list()
        return Choice(tenants=[one.name for one in tenants[:TENANTS_SHOWN_MAX]])
    detail = await services.operator.tenants.get(tenant)
    tenant_id = detail.tenant.id
    listed = await services.tenant.projects.list(tenant_id, PageParams(PROJECTS_SHOWN_MAX))
    projects = list(map(project_body, listed.rows))
    if not project_id:
        return Choice(tenant, projects)
    project = await services.tenant.projects.get(tenant_id, project_id)
    allowed = services.playground.served(detail.policy)
    off = project.controls.tools_off
    tools = [one for one in HOSTED if one in allowed and one not in off]
    return Choice(tenant, projects, project_body(project), tools)


@dataclass(frozen=True, slots=True)
class Fork:
    """Response that is continued behind output item `item`; None: behind the last."""

    response_id: str
    item: int | None
    tenant: str
    project_id: str
    model: str


async def find_fork(call: Call, response_id: str, item: str) -> Fork:
    """Raise `PermissionDenied` unless the response is revealed to the operator."""
    if not call.may("content.read"):
        raise PermissionDenied(
            "A fork shows what a response says, which takes the permission 'content.read'. Ask an "
            "owner of this gateway.",
            code="insufficient_permissions",
        )
    index = number(item, "item", "'item' is no number of an output item.") if item else None
    stored = call.services.operator.responses
    record = await stored.get(call.author, response_id)
    if record["content"]["revealed_until"] is None:
        raise PermissionDenied(
            "A fork shows what the response says, which is not revealed to you, or no longer. "
            "Reveal the response on its page, with a reason, and fork it from there.",
            code="content_not_revealed",
        )
    return Fork(response_id, index, record["tenant"]["name"], record["project_id"], record["model"])


async def context_of(call: Call, fork: Fork) -> tuple[Json, list[Json]]:
    """Return parameters and items of a request that goes on from the fork.

    Behind the last item it continues the response itself; before it, it refers to each item of the
    context, which the API copies.
    """
    stored = call.services.operator.responses
    page = PageParams(limit=PAGE_ITEMS, order="asc")
    content = await stored.items(call.author, fork.response_id, page)
    output = (content["response"] or {}).get("output") or []
    if fork.item is None or fork.item == len(output) - 1:
        return {"previous_response_id": fork.response_id}, []
    if fork.item >= len(output):
        raise InvalidRequest(
            f"The response has {len(output)} output items, counted from 0.", param="item"
        )
    items: list[Json] = list(content["input"])
    while content["has_more"]:
        if len(items) >= ITEMS_MAX:
            raise InvalidRequest(
                f"The context before this item has more than {ITEMS_MAX} items. Fork the response "
                "behind its last item: that continues it as it is stored.",
                param="item",
            )
        page = PageParams(limit=PAGE_ITEMS, order="asc", after=items[-1]["id"])
        content = await stored.items(call.author, fork.response_id, page)
        items += content["input"]
    copied = [*items, *output[: fork.item + 1]]
    return {}, [{"type": "item_reference", "id": item["id"]} for item in copied]


async def ask(call: Call) -> Response:
    form, playground = call.form, call.services.playground
    tenant = await call.services.operator.tenants.get(form.get("tenant", ""))
    context, items = await _context(call)
    items = [*items, *input_of(form)]
    body = body_of(form, context, items)
    caller = call.caller(tenant.tenant.id)
    key = await playground.keys.get(call.session, caller, form.get("project", ""))
    streamed = {**body, "stream": True, "stream_options": {"include_obfuscation": False}}
    lines = AnswerLines(
        lambda block, shown: call.render(ANSWERS, block, shown),
        request_snippets(call.api_url, body),
    )
    return StreamedAnswer(playground.app, key, orjson.dumps(streamed), lines)


async def _context(call: Call) -> tuple[Json, list[Json]]:
    if previous := call.form.get("previous"):
        return {"previous_response_id": previous}, []
    if not (response_id := call.form.get("fork")):
        return {}, []
    fork = await find_fork(call, response_id, call.form.get("item", ""))
    if (fork.tenant, fork.project_id) != (call.form.get("tenant"), call.form.get("project")):
        raise InvalidRequest("The forked response is of another project.", param="fork")
    return await context_of(call, fork)


async def stop(call: Call) -> Response | str:
    playground = call.services.playground
    key = playground.keys.find(call.session)
    response_id = call.form.get("response", "")
    if key is None or not _ID.fullmatch(response_id):
        return PATH
    return Cancellation(playground.app, key, response_id)


async def end(call: Call) -> str:
    await call.services.playground.keys.end(call.session)
    chosen = {name: call.form.get(name, "") for name in ("tenant", "project")}
    return f"{PATH}?{urlencode(chosen)}"


async def file(call: Call) -> Response | str:
    playground = call.services.playground
    key = playground.keys.find(call.session)
    container_id, file_id = call.query.get("container", ""), call.query.get("file", "")
    if key is None or not (_ID.fullmatch(container_id) and _ID.fullmatch(file_id)):
        return f"{PATH}?gone=1"
    return FileAnswer(playground.app, key, container_id, file_id)


PAGE: Final = Page(
    path=PATH,
    title="Playground",
    template="playground.html",
    permission="tenants.write",
    view=view,
    acts=(
        Act(f"{PATH}/ask", "tenants.write", ask),
        Act(f"{PATH}/stop", "tenants.write", stop),
        Act(f"{PATH}/end", "tenants.write", end),
    ),
    icon="playground",
    shortcut="p",
)
FILE_PAGE: Final = Page(path=FILE, permission="tenants.write", view=file)
