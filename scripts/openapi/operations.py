"""Every documented route on a few screens: what it takes, and what it gives."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.api.access.authentication import EXCHANGE_PATH
from gateway.protocol.documented import INCLUDE_VALUES

Tag = Literal[
    "Responses",
    "Conversations",
    "Containers",
    "Files",
    "Chat",
    "Models",
    "Traces",
    "Keys",
    "Operation",
]

TAGS: Final[dict[Tag, str]] = {
    "Responses": "Create responses, follow them, continue them.",
    "Conversations": "Contexts that outlive a chain of responses.",
    "Containers": "Where Python runs, and its files; only where the server runs code.",
    "Files": "Files that containers are given; only where the server runs code.",
    "Chat": "Older forms of the same, for the tools that need them.",
    "Models": "What can be asked.",
    "Traces": "Where agents send what they did.",
    "Keys": "What a key is for, and tokens in the place of keys.",
    "Operation": "For operators and their tools; without a key.",
}
_SECTIONS: Final[dict[str, Tag]] = {
    "/v1/responses": "Responses",
    "/v1/conversations": "Conversations",
    "/v1/containers": "Containers",
    "/v1/files": "Files",
    "/v1/chat": "Chat",
    "/v1/completions": "Chat",
    "/v1/models": "Models",
    "/v1/codex": "Models",
    "/v1/embeddings": "Models",
    "/v1/rerank": "Models",
    "/v1/traces": "Traces",
    "/v1/key": "Keys",
    "/oauth": "Keys",
    "/": "Operation",
}
"""The section of a path is that of the first of these that it begins with."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a path or a query."""

    name: str
    place: Literal["path", "query", "header"]
    description: str
    schema: dict[str, Any]


PATH_PARAMETERS: Final = {
    "response_id": "Such as `resp_…`.",
    "conversation_id": "Such as `conv_…`.",
    "item_id": "The id of an item of the conversation.",
    "container_id": "Such as `cntr_…`.",
    "file_id": "Such as `file-…`; of a container, `cfile_…`.",
    "model": "Its id or an alias; slashes need not be escaped.",
}
"""What the parameters in paths are."""
_TEXT: Final = {"type": "string"}
_FLAG: Final = {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route, as in `GET /v1/models`.

    `parameters` are those of the query and of headers. `body` and `answer` name a schema that
    `generate` makes; None: there is none. `events` are the schemas of the data of a stream,
    where `stream` can ask for one. `form` is the schema of a body that is a form. `media` is the
    type of an answer that is no JSON. `statuses` are those of an answer that is no refusal; all
    are answered alike.
    """

    route: str
    id: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    form: str | None = None
    answer: str | None = None
    events: tuple[str, ...] = ()
    media: str = "application/json"
    statuses: tuple[int, ...] = (200,)

    @property
    def method(self) -> str:
        # In lower case, as the document has it.
        return self.route.partition(" ")[0].lower()

    @property
    def path(self) -> str:
        return self.route.partition(" ")[2]

    @property
    def tag(self) -> Tag:
        return next(tag for prefix, tag in _SECTIONS.items() if self.path.startswith(prefix))

    @property
    def needs_key(self) -> bool:
        return self.tag != "Operation" and self.path != EXCHANGE_PATH

    @property
    def refusal(self) -> str | None:
        """Return the name of the schema of errors."""
        if self.path == EXCHANGE_PATH:
            return "TokenError"
        return "Error" if self.needs_key else None

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """Return all parameters, those of the path first."""
        in_path = [
            Parameter(name, "path", PATH_PARAMETERS[name], _TEXT)
            for name in re.findall(r"{(\w+)}", self.path)
        ]
        return (*in_path, *self.parameters)


_INCLUDE: Final = Parameter(
    "include[]",
    "query",
    "What to show beside what the request asked for: `web_search_call.action.sources`, "
    "`code_interpreter_call.outputs`. Other values are known, and add nothing here.",
    {"type": "array", "items": {"type": "string", "enum": list(INCLUDE_VALUES)}},
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
    Parameter("before", "query", "The id of the item that the page ends before.", _TEXT),
    _INCLUDE,
)
_PLAIN_PAGE: Final = _PAGE[:4]
_IDEMPOTENCY: Final = Parameter(
    "Idempotency-Key",
    "header",
    "The same key with the same body is answered with the same response.",
    _TEXT,
)

OPERATIONS: Final = (
    Operation(
        "POST /v1/responses",
        "createResponse",
        "Create a response",
        "Answers with the Response object, or with `stream: true` with events. The same URL takes "
        "WebSocket connections: each text frame from the client is a `response.create` with these "
        "fields, each one back an event.",
        parameters=(_IDEMPOTENCY,),
        body="CreateResponse",
        answer="Response",
        events=("ResponseStreamEvent",),
    ),
    Operation(
        "POST /v1/responses/input_tokens",
        "countInputTokens",
        "Count the tokens of a request",
        "As many as the prompt of a response with these fields would have. Nothing is stored.",
        body="CountInputTokens",
        answer="InputTokens",
    ),
    Operation(
        "POST /v1/responses/compact",
        "compactResponse",
        "Make a long context short",
        "The model sums up; `output` is what to send as `input` in the place of all before it.",
        body="CompactResponse",
        answer="CompactedResponse",
    ),
    Operation(
        "GET /v1/responses/{response_id}",
        "getResponse",
        "Retrieve a response",
        "With `stream=true` its events are replayed and followed, behind `starting_after`.",
        parameters=(
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
        events=("ResponseStreamEvent",),
    ),
    Operation(
        "DELETE /v1/responses/{response_id}",
        "deleteResponse",
        "Delete a response",
        answer="Deleted",
    ),
    Operation(
        "POST /v1/responses/{response_id}/cancel",
        "cancelResponse",
        "Cancel a background response",
        answer="Response",
    ),
    Operation(
        "GET /v1/responses/{response_id}/input_items",
        "listInputItems",
        "List what a response was generated from",
        parameters=_PAGE,
        answer="ResponseItemList",
    ),
    Operation(
        "POST /v1/conversations",
        "createConversation",
        "Create a conversation",
        body="CreateConversation",
        answer="Conversation",
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}",
        "getConversation",
        "Retrieve a conversation",
        answer="Conversation",
    ),
    Operation(
        "POST /v1/conversations/{conversation_id}",
        "updateConversation",
        "Change the metadata of a conversation",
        body="UpdateConversation",
        answer="Conversation",
    ),
    Operation(
        "DELETE /v1/conversations/{conversation_id}",
        "deleteConversation",
        "Delete a conversation",
        answer="DeletedConversation",
    ),
    Operation(
        "POST /v1/conversations/{conversation_id}/items",
        "createConversationItems",
        "Add items to a conversation",
        parameters=(_INCLUDE,),
        body="CreateConversationItems",
        answer="ConversationItemList",
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}/items",
        "listConversationItems",
        "List the items of a conversation",
        parameters=_PAGE,
        answer="ConversationItemList",
    ),
    Operation(
        "GET /v1/conversations/{conversation_id}/items/{item_id}",
        "getConversationItem",
        "Retrieve an item",
        parameters=(_INCLUDE,),
        answer="ConversationItem",
    ),
    Operation(
        "DELETE /v1/conversations/{conversation_id}/items/{item_id}",
        "deleteConversationItem",
        "Remove an item",
        answer="Conversation",
    ),
    Operation(
        "POST /v1/containers",
        "createContainer",
        "Create a container",
        body="CreateContainer",
        answer="Container",
    ),
    Operation(
        "GET /v1/containers",
        "listContainers",
        "List the containers that have not expired",
        parameters=(*_PLAIN_PAGE, Parameter("name", "query", "Only those of this name.", _TEXT)),
        answer="ContainerList",
    ),
    Operation(
        "GET /v1/containers/{container_id}",
        "getContainer",
        "Retrieve a container",
        answer="Container",
    ),
    Operation(
        "DELETE /v1/containers/{container_id}",
        "deleteContainer",
        "Delete a container with its files",
        answer="DeletedContainer",
    ),
    Operation(
        "POST /v1/containers/{container_id}/files",
        "createContainerFile",
        "Put a file into a container",
        "A form with a `file`, or a form or JSON with the `file_id` of an uploaded one.",
        body="CreateContainerFile",
        form="UploadContainerFile",
        answer="ContainerFile",
    ),
    Operation(
        "GET /v1/containers/{container_id}/files",
        "listContainerFiles",
        "List the files of a container",
        parameters=_PLAIN_PAGE,
        answer="ContainerFileList",
    ),
    Operation(
        "GET /v1/containers/{container_id}/files/{file_id}",
        "getContainerFile",
        "Retrieve a file of a container",
        answer="ContainerFile",
    ),
    Operation(
        "DELETE /v1/containers/{container_id}/files/{file_id}",
        "deleteContainerFile",
        "Delete a file of a container",
        answer="DeletedContainerFile",
    ),
    Operation(
        "GET /v1/containers/{container_id}/files/{file_id}/content",
        "getContainerFileContent",
        "Download a file of a container",
        media="application/octet-stream",
    ),
    Operation("POST /v1/files", "createFile", "Upload a file", form="CreateFile", answer="File"),
    Operation(
        "GET /v1/files",
        "listFiles",
        "List the uploaded files",
        parameters=(
            Parameter(
                "limit",
                "query",
                "Files in a page.",
                {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 10_000},
            ),
            *_PLAIN_PAGE[1:],
            Parameter("purpose", "query", "Only those for this purpose.", _TEXT),
        ),
        answer="FileList",
    ),
    Operation("GET /v1/files/{file_id}", "getFile", "Retrieve a file", answer="File"),
    Operation("DELETE /v1/files/{file_id}", "deleteFile", "Delete a file", answer="DeletedFile"),
    Operation(
        "GET /v1/files/{file_id}/content",
        "getFileContent",
        "Download a file",
        media="application/octet-stream",
    ),
    Operation(
        "POST /v1/chat/completions",
        "createChatCompletion",
        "Create a chat completion",
        body="CreateChatCompletion",
        answer="ChatCompletion",
        events=("ChatCompletionChunk", "Error"),
    ),
    Operation(
        "POST /v1/completions",
        "createCompletion",
        "Create a text completion",
        "The prompt is one message of the user; the answer is the text.",
        body="CreateCompletion",
        answer="Completion",
        events=("Completion", "Error"),
    ),
    Operation(
        "POST /v1/embeddings",
        "createEmbeddings",
        "Make embeddings",
        "Passed through to a model whose `capabilities` have `embeddings`; fields that are not "
        "described here, too.",
        body="CreateEmbeddings",
        answer="Object",
    ),
    Operation(
        "POST /v1/rerank",
        "rerank",
        "Rank documents by a query",
        "Passed through to a model whose `capabilities` have `rerank`; fields that are not "
        "described here, too.",
        body="Rerank",
        answer="Object",
    ),
    Operation(
        "GET /v1/key",
        "getKey",
        "What the key of the request may do, and what is left",
        "In OpenRouter's shape: `usage` is the key's own, in dollars; `limit` is the tightest "
        "budget of money that binds it, null where there is none. `harmony.limits` and "
        "`harmony.budgets` have all of them.",
        answer="Object",
    ),
    Operation(
        "POST /oauth/token",
        "exchangeToken",
        "Exchange a token of an issuer for one of a service account",
        "OAuth 2.0 Token Exchange, in JSON or as a form. It takes no key.",
        body="TokenExchange",
        answer="AccessToken",
    ),
    Operation("GET /v1/models", "listModels", "List the models", answer="ModelList"),
    Operation("GET /v1/models/{model}", "getModel", "Retrieve a model", answer="Model"),
    Operation(
        "GET /v1/codex/models",
        "listCodexModels",
        "The models as Codex's catalogue",
        parameters=(Parameter("client_version", "query", "Of Codex.", _TEXT),),
        answer="Object",
    ),
    Operation(
        "POST /v1/traces/ingest",
        "ingestTraces",
        "Keep traces and spans",
        "As the Agents SDK exports them.",
        body="IngestTraces",
        statuses=(204,),
    ),
    Operation("GET /healthz", "health", "The process answers", answer="Object"),
    Operation(
        "GET /readyz",
        "readiness",
        "Whether requests can be served, and why not",
        answer="Object",
        statuses=(200, 503),
    ),
    Operation("GET /version", "version", "The version", answer="Object"),
    Operation("GET /metrics", "metrics", "Metrics for Prometheus", media="text/plain"),
)
