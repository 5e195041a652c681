from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from gateway.api.query import include_of, json_response, list_body, page_query
from gateway.protocol.conversation_bodies import parse_conversation, parse_items, parse_metadata
from gateway.protocol.responses.create_request import refuse_key

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.api.request_body import BodyReader
    from gateway.services.conversations import Conversations
    from gateway.tenancy import Principal


class ConversationEndpoints:
    """Endpoints with one method per URL: with a route per HTTP method a 405 would name one only."""

    def __init__(self, conversations: Conversations, bodies: BodyReader) -> None:
        self._conversations = conversations
        self._read = bodies.read_fields

    async def create(self, request: Request) -> Response:
        refuse_key(request.headers.raw)
        new, size_bytes = await self._read(request.scope, request.receive, parse_conversation)
        principal = request.scope["principal"]
        created = await self._conversations.create(principal, new, body_bytes=size_bytes)
        return json_response(created.body())

    async def one(self, request: Request) -> Response:
        principal, conversation_id = _caller_and_id(request)
        if request.method == "DELETE":
            await self._conversations.delete(principal, conversation_id)
            deleted = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
            return json_response(deleted)
        if request.method == "POST":
            new, _ = await self._read(request.scope, request.receive, parse_metadata)
            conversation = await self._conversations.set_metadata(
                principal, conversation_id, new.metadata
            )
        else:
            conversation = await self._conversations.get(principal, conversation_id)
        return json_response(conversation.body())

    async def items(self, request: Request) -> Response:
        if request.method != "POST":
            query = request.query_params
            page = await self._conversations.list_items(
                *_caller_and_id(request), page_query(query), include=include_of(query)
            )
            return json_response(list_body(map(orjson.loads, page.rows), has_more=page.has_more))
        refuse_key(request.headers.raw)
        include_of(request.query_params)  # items that are added are shown as they were sent
        new, size_bytes = await self._read(request.scope, request.receive, parse_items)
        added = await self._conversations.add_items(
            *_caller_and_id(request), new.items, body_bytes=size_bytes
        )
        return json_response(list_body(map(orjson.loads, added), has_more=False))

    async def item(self, request: Request) -> Response:
        item_id = request.path_params["item_id"]
        if request.method == "DELETE":
            conversation = await self._conversations.delete_item(*_caller_and_id(request), item_id)
            return json_response(conversation.body())
        item = await self._conversations.get_item(
            *_caller_and_id(request), item_id, include=include_of(request.query_params)
        )
        return Response(item, media_type="application/json")


def _caller_and_id(request: Request) -> tuple[Principal, str]:
    return request.scope["principal"], request.path_params["conversation_id"]
