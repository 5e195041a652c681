"""Every documented route on a few screens: what it takes, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

Tag = Literal["Responses", "Conversations", "Chat", "Models", "Traces", "Operation"]

TAGS: Final[dict[Tag, str]] = {
    "Responses": "Create responses, follow them, continue them.",
    "Conversations": "Contexts that outlive a chain of responses.",
    "Chat": "Older forms of the same, for the tools that need them.",
    "Models": "What can be asked.",
    "Traces": "Where agents send what they did.",
    "Operation": "For operators and their tools; without a key.",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a path or a query."""

    name: str
    place: Literal["path", "query", "header"]
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route.

    `body` and `answer` name a schema that `generate` makes; None: there is none. `events` is the
    schema of the data of a stream, where `stream` can ask for one. `media` is the type of an answer
    that is no JSON. `statuses` are those of an answer that is no refusal; all are answered alike.
    """

    method: Literal["get", "post", "delete"]
    path: str
    id: str
    tag: Tag
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    answer: str | None = None
    events: str | None = None
    media: str = "application/json"
    statuses: tuple[int, ...] = (200,)
    needs_key: bool = True


_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}


def _in_path(name: str, description: str) -> Parameter:
    return Parameter(name, "path", description, _TEXT)


_RESPONSE: Final = _in_path("response_id", "Such as `resp_…`.")
_CONVERSATION: Final = _in_path("conversation_id", "Such as `conv_…`.")
_ITEM: Final = _in_path("item_id", "The id of an item of the conversation.")
_INCLUDE: Final = Parameter(
    "include[]",
    "query",
    "What to show beside the rest; all there is of an item is shown anyway.",
    {"type": "array", "items": _TEXT},
)
_PAGE: Final = (
    Parameter(
        "limit",
        "query",
        "Items in a page.",
        {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    ),
    Parameter(
        "order", "query", "By age.", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}
    ),
    Parameter("after", "query", "The id of the item that the page begins behind.", _TEXT),
    _INCLUDE,
)
_IDEMPOTENCY: Final = Parameter(
    "Idempotency-Key",
    "header",
    "The same key with the same body is answered with the same response.",
    _TEXT,
)

OPERATIONS: Final = (
    Operation(
        "post",
        "/v1/responses",
        "createResponse",
        "Responses",
        "Create a response",
        "Answers with the Response object, or with `stream: true` with events. The same URL takes "
        "WebSocket connections: each text frame from the client is a `response.create` with these "
        "fields, each one back an event.",
        parameters=(_IDEMPOTENCY,),
        body="CreateResponse",
        answer="Response",
        events="ResponseStreamEvent",
    ),
    Operation(
        "post",
        "/v1/responses/input_tokens",
        "countInputTokens",
        "Responses",
        "Count the tokens of a request",
        "As many as the prompt of a response with these fields would have. Nothing is stored.",
        body="CountInputTokens",
        answer="InputTokens",
    ),
    Operation(
        "post",
        "/v1/responses/compact",
        "compactResponse",
        "Responses",
        "Make a long context short",
        "The model sums up; `output` is what to send as `input` in the place of all before it.",
        body="CompactResponse",
        answer="CompactedResponse",
    ),
    Operation(
        "get",
        "/v1/responses/{response_id}",
        "getResponse",
        "Responses",
        "Retrieve a response",
        "With `stream=true` its events are replayed and followed, behind `starting_after`.",
        parameters=(
            _RESPONSE,
            _INCLUDE,
            Parameter("stream", "query", "Events instead of the object.", _FLAG),
            Parameter(
                "starting_after",
                "query",
                "The sequence number of the last event that was seen.",
                {"type": "integer", "minimum": 0},
            ),
            Parameter("include_obfuscation", "query", "Pad the deltas.", _FLAG),
        ),
        answer="Response",
        events="ResponseStreamEvent",
    ),
    Operation(
        "delete",
        "/v1/responses/{response_id}",
        "deleteResponse",
        "Responses",
        "Delete a response",
        parameters=(_RESPONSE,),
        answer="Deleted",
    ),
    Operation(
        "post",
        "/v1/responses/{response_id}/cancel",
        "cancelResponse",
        "Responses",
        "Cancel a background response",
        parameters=(_RESPONSE,),
        answer="Response",
    ),
    Operation(
        "get",
        "/v1/responses/{response_id}/input_items",
        "listInputItems",
        "Responses",
        "List what a response was generated from",
        parameters=(_RESPONSE, *_PAGE),
        answer="ResponseItemList",
    ),
    Operation(
        "post",
        "/v1/conversations",
        "createConversation",
        "Conversations",
        "Create a conversation",
        body="CreateConversation",
        answer="Conversation",
    ),
    Operation(
        "get",
        "/v1/conversations/{conversation_id}",
        "getConversation",
        "Conversations",
        "Retrieve a conversation",
        parameters=(_CONVERSATION,),
        answer="Conversation",
    ),
    Operation(
        "post",
        "/v1/conversations/{conversation_id}",
        "updateConversation",
        "Conversations",
        "Change the metadata of a conversation",
        parameters=(_CONVERSATION,),
        body="UpdateConversation",
        answer="Conversation",
    ),
    Operation(
        "delete",
        "/v1/conversations/{conversation_id}",
        "deleteConversation",
        "Conversations",
        "Delete a conversation",
        parameters=(_CONVERSATION,),
        answer="DeletedConversation",
    ),
    Operation(
        "post",
        "/v1/conversations/{conversation_id}/items",
        "createConversationItems",
        "Conversations",
        "Add items to a conversation",
        parameters=(_CONVERSATION, _INCLUDE),
        body="CreateConversationItems",
        answer="ConversationItemList",
    ),
    Operation(
        "get",
        "/v1/conversations/{conversation_id}/items",
        "listConversationItems",
        "Conversations",
        "List the items of a conversation",
        parameters=(_CONVERSATION, *_PAGE),
        answer="ConversationItemList",
    ),
    Operation(
        "get",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "getConversationItem",
        "Conversations",
        "Retrieve an item",
        parameters=(_CONVERSATION, _ITEM, _INCLUDE),
        answer="ConversationItem",
    ),
    Operation(
        "delete",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "deleteConversationItem",
        "Conversations",
        "Remove an item",
        parameters=(_CONVERSATION, _ITEM),
        answer="Conversation",
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        "createChatCompletion",
        "Chat",
        "Create a chat completion",
        body="CreateChatCompletion",
        answer="ChatCompletion",
        events="ChatCompletionChunk",
    ),
    Operation(
        "post",
        "/v1/completions",
        "createCompletion",
        "Chat",
        "Create a text completion",
        "The prompt is one message of the user; the answer is the text.",
        body="CreateCompletion",
        answer="Completion",
        events="Completion",
    ),
    Operation("get", "/v1/models", "listModels", "Models", "List the models", answer="ModelList"),
    Operation(
        "get",
        "/v1/models/{model}",
        "getModel",
        "Models",
        "Retrieve a model",
        parameters=(_in_path("model", "Its id or an alias; slashes need not be escaped."),),
        answer="Model",
    ),
    Operation(
        "get",
        "/v1/codex/models",
        "listCodexModels",
        "Models",
        "The models as Codex's catalogue",
        parameters=(Parameter("client_version", "query", "Of Codex.", _TEXT),),
        answer="Object",
    ),
    Operation(
        "post",
        "/v1/traces/ingest",
        "ingestTraces",
        "Traces",
        "Keep traces and spans",
        "As the Agents SDK exports them.",
        body="IngestTraces",
        statuses=(204,),
    ),
    Operation(
        "get",
        "/healthz",
        "health",
        "Operation",
        "The process answers",
        answer="Object",
        needs_key=False,
    ),
    Operation(
        "get",
        "/readyz",
        "readiness",
        "Operation",
        "Whether requests can be served, and why not",
        answer="Object",
        statuses=(200, 503),
        needs_key=False,
    ),
    Operation(
        "get", "/version", "version", "Operation", "The version", answer="Object", needs_key=False
    ),
    Operation(
        "get",
        "/metrics",
        "metrics",
        "Operation",
        "Metrics for Prometheus",
        media="text/plain",
        needs_key=False,
    ),
)
