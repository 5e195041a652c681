"""`/v1/conversations`: create, retrieve, update, delete, and the same for their items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from starlette.responses import Response

from gateway.api.query import include_of, list_body, page_query
from gateway.protocol.conversation_bodies import parse_conversation, parse_items, parse_metadata
from gateway.protocol.responses.create_request import refuse_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from gateway.api.client_connection import BodyReader
    from gateway.protocol.base import BodyModel
    from gateway.services.conversations import Conversations

AnyBody = TypeVar("AnyBody", bound="BodyModel")


class ConversationEndpoints:
    """Endpoints of conversations and their items.

    Each URL has one method here: with a route for each HTTP method a 405 would name one only.
    """

    def __init__(self, conversations: Conversations, bodies: BodyReader) -> None:
        self._conversations = conversations
        self._bodies = bodies

    async def create(self, request: Request) -> Response:
        """Create a conversation, with the items in the body: `POST /v1/conversations`."""
        refuse_key(request.headers.raw)
        new, size_bytes = await self._read_body(request, parse_conversation)
        principal = request.scope["principal"]
        created = await self._conversations.create(principal, new, body_bytes=size_bytes)
        return _json(created.body())

    async def one(self, request: Request) -> Response:
        match request.method:
            case "POST":
                return await self.update(request)
            case "DELETE":
                return await self.delete(request)
            case _:
                return await self.retrieve(request)

    async def retrieve(self, request: Request) -> Response:
        """Return a conversation without its items: `GET /v1/conversations/{id}`."""
        found = await self._conversations.get(*_caller_and_id(request))
        return _json(found.body())

    async def update(self, request: Request) -> Response:
        """Replace the metadata: `POST /v1/conversations/{id}`."""
        new, _ = await self._read_body(request, parse_metadata)
        changed = await self._conversations.set_metadata(*_caller_and_id(request), new.metadata)
        return _json(changed.body())

    async def delete(self, request: Request) -> Response:
        """Delete a conversation: `DELETE /v1/conversations/{id}`. Its responses stay."""
        principal, conversation_id = _caller_and_id(request)
        await self._conversations.delete(principal, conversation_id)
        deleted = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        return _json(deleted)

    async def items(self, request: Request) -> Response:
        """Add or list items, by the method of `/v1/conversations/{id}/items`."""
        if request.method == "POST":
            return await self.add_items(request)
        return await self.list_items(request)

    async def add_items(self, request: Request) -> Response:
        """Append items and return them: `POST /v1/conversations/{id}/items`."""
        refuse_key(request.headers.raw)
        include_of(request.query_params)  # items that are added are shown as they were sent
        new, size_bytes = await self._read_body(request, parse_items)
        added = await self._conversations.add_items(
            *_caller_and_id(request), new.items, body_bytes=size_bytes
        )
        return _json(list_body(added, has_more=False))

    async def list_items(self, request: Request) -> Response:
        """Return one page of items: `GET /v1/conversations/{id}/items`."""
        query = page_query(request.query_params)
        page = await self._conversations.list_items(*_caller_and_id(request), **query)
        return _json(list_body(page.items, has_more=page.has_more))

    async def item(self, request: Request) -> Response:
        """Retrieve or delete `/v1/conversations/{id}/items/{item_id}`, by the method."""
        item_id = request.path_params["item_id"]
        if request.method == "DELETE":
            conversation = await self._conversations.delete_item(*_caller_and_id(request), item_id)
            return _json(conversation.body())
        found = await self._conversations.get_item(
            *_caller_and_id(request), item_id, include=include_of(request.query_params)
        )
        return Response(found, media_type="application/json")

    async def _read_body(
        self, request: Request, parse: Callable[..., AnyBody]
    ) -> tuple[AnyBody, int]:
        body = await self._bodies.read(request.scope, request.receive)
        asked = await self._bodies.parse(body, parse)
        if asked.ignored:
            request.scope["record"].facts["ignored_parameters"] = ", ".join(asked.ignored)
        return asked, len(body)


def _caller_and_id(request: Request) -> tuple[Any, str]:
    return request.scope["principal"], request.path_params["conversation_id"]


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
