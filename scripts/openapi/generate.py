"""Makes the OpenAPI 3.1 document, from the operations and the types of OpenAI's own client.

What the client knows and this gateway does not (tools that it does not run, their items and their
events, parameters that are refused) is left out, and then all that nothing refers to any more. It
takes a second, so it is done once, by `make openapi`, and packaged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, get_args

import orjson
from openai.types import (
    Completion,
    ContainerCreateResponse,
    FileDeleted,
    FileObject,
    completion_create_params,
    container_create_params,
)
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import completion_create_params as chat_params
from openai.types.containers import FileCreateResponse as ContainerFile
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
    ConversationItemList,
    conversation_create_params,
    conversation_update_params,
    item_create_params,
)
from openai.types.responses import (
    CompactedResponse,
    Response,
    ResponseStreamEvent,
    input_token_count_params,
    response_compact_params,
    response_create_params,
)
from openai.types.responses.input_token_count_response import InputTokenCountResponse
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter

from gateway import __version__
from gateway.api.access.token_exchange import JWT_BEARER, SUBJECT_TYPES, TOKEN_EXCHANGE
from gateway.api.dialects import BASE_PATH
from gateway.api.openapi.endpoints import REFERENCE, Json
from gateway.protocol.container_bodies import PURPOSES, SECONDS_MAX, SECONDS_MIN
from gateway.protocol.documented import ITEM_TYPES, TOOL_CHOICE_TYPES, TOOL_TYPES
from gateway.protocol.hosted_tools import FAMILIES
from gateway.protocol.items import InputItem
from gateway.protocol.responses.create_request import CreateResponse
from gateway.protocol.tool_types import SERVED_TOOL_TYPES
from scripts.openapi.operations import OPERATIONS, TAGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scripts.openapi.operations import Operation, Parameter

TYPES: Final[dict[str, Any]] = {
    "CreateResponse": response_create_params.ResponseCreateParamsNonStreaming,
    "Response": Response,
    "ResponseStreamEvent": ResponseStreamEvent,
    "CountInputTokens": input_token_count_params.InputTokenCountParams,
    "InputTokens": InputTokenCountResponse,
    "CompactResponse": response_compact_params.ResponseCompactParams,
    "CompactedResponse": CompactedResponse,
    "ResponseItemList": ResponseItemList,
    "CreateConversation": conversation_create_params.ConversationCreateParams,
    "UpdateConversation": conversation_update_params.ConversationUpdateParams,
    "CreateConversationItems": item_create_params.ItemCreateParams,
    "Conversation": Conversation,
    "DeletedConversation": ConversationDeletedResource,
    "ConversationItem": ConversationItem,
    "ConversationItemList": ConversationItemList,
    "CreateContainer": container_create_params.ContainerCreateParams,
    "Container": ContainerCreateResponse,
    "ContainerFile": ContainerFile,
    "File": FileObject,
    "DeletedFile": FileDeleted,
    "CreateChatCompletion": chat_params.CompletionCreateParamsNonStreaming,
    "ChatCompletion": ChatCompletion,
    "ChatCompletionChunk": ChatCompletionChunk,
    "CreateCompletion": completion_create_params.CompletionCreateParamsNonStreaming,
    "Completion": Completion,
}
"""The public name of each type."""

UNSERVED_PROPERTIES: Final = frozenset(
    {
        *("prompt", "moderation", "image", "access_programs", "audio", "modalities"),
        *("input_transformations", "prompt_cache_breakpoint"),
        *("caller", "allowed_callers", "async", "created_by", "misalignment"),
        *("prediction", "connector_id", "tunnel_id", "skills"),
    }
)
"""Of any object but a text completion, whose `prompt` is served: refused, or without any effect."""
SERVED_ITEM_TYPES: Final = frozenset(
    item.model_fields["type"].default for item in get_args(InputItem)
)
SERVED_EVENT_TYPES: Final = frozenset(
    {
        *("error", "response.created", "response.queued", "response.in_progress"),
        *("response.completed", "response.incomplete", "response.failed"),
        *("response.output_item.added", "response.output_item.done"),
        *("response.content_part.added", "response.content_part.done"),
        *("response.output_text.delta", "response.output_text.done"),
        *("response.refusal.delta", "response.refusal.done"),
        *("response.reasoning_text.delta", "response.reasoning_text.done"),
        *("response.reasoning_summary_part.added", "response.reasoning_summary_part.done"),
        *("response.reasoning_summary_text.delta", "response.reasoning_summary_text.done"),
        *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
        *("response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"),
        *("response.shell_call_command.added", "response.shell_call_command.delta"),
        *("response.shell_call_command.done", "response.compaction.compacting"),
        "response.output_text.annotation.added",
        *("response.web_search_call.in_progress", "response.web_search_call.searching"),
        *("response.web_search_call.completed", "response.code_interpreter_call.in_progress"),
        *("response.code_interpreter_call_code.delta", "response.code_interpreter_call_code.done"),
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
        *("response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed"),
        *("response.mcp_list_tools.failed", "response.mcp_call.in_progress"),
        *("response.mcp_call_arguments.delta", "response.mcp_call_arguments.done"),
        *("response.mcp_call.completed", "response.mcp_call.failed"),
    }
)
EXTENDED: Final = (
    *("presence_penalty", "frequency_penalty", "seed", "stop", "top_k", "min_p"),
    *("include", "enable_response_messages"),
)
"""Parameters that OpenAI's type lacks, or has less of."""
PARAMETERS: Final = {
    "model": "The id or an alias of a model of `GET /v1/models`.",
    "input": "A text, which is one message of the user, or items.",
    "instructions": "Put first, for this response alone: they are not inherited.",
    "previous_response_id": "A stored response; its input and output come before `input`.",
    "conversation": "A conversation whose items come before `input`; what is new is added to it.",
    "store": "Keep the response and its items, for retrieval and for continuation.",
    "background": "Answer at once and generate in the background; needs `store`.",
    "stream": "Answer with server-sent events.",
    "stream_options": "`include_obfuscation: false` leaves out the padding of deltas.",
    "include": "What to show beside the rest: `reasoning.encrypted_content` seals the reasoning "
    "for clients that store nothing here, `message.output_text.logprobs` adds logprobs, "
    "`web_search_call.action.sources` and `code_interpreter_call.outputs` what tools returned.",
    "max_output_tokens": "Bounds all that is generated, reasoning included; at least 16.",
    "max_tool_calls": "Bounds calls of the tools that the server runs.",
    "metadata": "Up to 16 pairs of texts that are kept with the response.",
    "parallel_tool_calls": "False: at most one call in a response.",
    "prompt_cache_key": "A hint that groups requests with the same beginning.",
    "prompt_cache_retention": "A hint without effect: backends cache every prompt. It is repeated, "
    "and named in `x-ignored-parameters`.",
    "prompt_cache_options": "`prewarm: true` checks the request and prepares its context; nothing "
    "is generated. The rest are hints without effect, since backends cache every prompt; they are "
    "named in `x-ignored-parameters`.",
    "reasoning": "`effort` is low, medium or high; `summary` asks for a summary; `max_tokens` "
    "bounds the reasoning.",
    "safety_identifier": "A stable name of your user; kept with the response.",
    "service_tier": "`flex` waits behind others, `priority` goes first where the tenant may.",
    "temperature": "From 0 to 2.",
    "top_p": "From 0 to 1.",
    "top_logprobs": "How many likely tokens are told for each token of the answer, up to 20.",
    "presence_penalty": "From -2 to 2.",
    "frequency_penalty": "From -2 to 2.",
    "text": "`format` is text, json_object or json_schema; `verbosity` is low, medium or high.",
    "tools": "Functions, custom tools, namespaces, shells and apply_patch, which the client runs; "
    "web search, the code interpreter and MCP servers, which the server runs if they are set up.",
    "tool_choice": "none, auto, required, one tool, or the tools that are allowed.",
    "truncation": "`auto` drops the oldest turns where the context does not fit.",
    "context_management": "`compaction` sums the context up where it grows beyond a threshold.",
    "user": "A stable name of your user; kept with the response.",
    "enable_response_messages": "Shows the Harmony messages of prompt and output when the response "
    "has ended, where the tenant may see them; with token ids by `include`.",
    "seed": "Makes sampling repeatable as far as the backend does.",
    "stop": "Up to four texts that end the answer and are no part of it.",
    "top_k": "Samples from so many likely tokens; -1: from all.",
    "min_p": "Leaves out tokens that are so much less likely than the likeliest.",
}
"""What the parameters of a response do, in a sentence each."""
_EVENT: Final = re.compile(r"response\.|error$")
_KNOWN_TYPES: Final = frozenset({*ITEM_TYPES, *TOOL_TYPES, *TOOL_CHOICE_TYPES})
_SERVED_TYPES: Final = SERVED_ITEM_TYPES | {*SERVED_TOOL_TYPES, *FAMILIES, "allowed_tools"}

SERVERS: Final[list[Json]] = [
    {"url": "/", "description": "As OpenAI spells it."},
    {"url": BASE_PATH, "description": "As Open Responses does; what needs no key is not there."},
]
ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_MODEL: Final[Json] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "context_length": {"type": "integer", "description": "In tokens, output included."},
        "aliases": {"type": "array", "items": {"type": "string"}},
        "parent": {"type": ["string", "null"], "description": "The base model of an adapter."},
    },
}


_TEXTS: Final[Json] = {"type": ["string", "array"]}
_CREATE_EMBEDDINGS: Final[Json] = {
    "type": "object",
    "required": ["model", "input"],
    "properties": {
        "model": {"type": "string"},
        "input": {**_TEXTS, "description": "Texts, or lists of token ids."},
        "encoding_format": {"enum": ["float", "base64"]},
        "dimensions": {"type": "integer", "minimum": 1},
    },
}
_RERANK: Final[Json] = {
    "type": "object",
    "required": ["model", "query", "documents"],
    "properties": {
        "model": {"type": "string"},
        "query": {"type": ["string", "object"]},
        "documents": {"type": ["array", "object"]},
        "top_n": {"type": "integer"},
    },
}


def _list_of(name: str) -> Json:
    items = {"type": "array", "items": {"$ref": REFERENCE + name}}
    return {"type": "object", "properties": {"object": {"const": "list"}, "data": items}}


def _deleted(kind: str) -> Json:
    properties = {"id": {"type": "string"}, "object": {"const": kind}, "deleted": {"const": True}}
    return {"type": "object", "properties": properties}


_CUSTOM_CALL_DELTA: Final[Json] = {
    "type": "object",
    "required": ["index", "custom"],
    "properties": {
        "index": {"type": "integer"},
        "id": {"type": "string"},
        "type": {"const": "custom"},
        "custom": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "input": {"type": "string"}},
        },
    },
}


_OWN: Final[Json] = {
    "Error": ERROR,
    "Object": {"type": "object"},
    "Model": _MODEL,
    "CreateEmbeddings": _CREATE_EMBEDDINGS,
    "Rerank": _RERANK,
    "ModelList": _list_of("Model"),
    "Deleted": _deleted("response"),
    "DeletedContainer": _deleted("container.deleted"),
    "DeletedContainerFile": _deleted("container.file.deleted"),
    "ContainerList": _list_of("Container"),
    "ContainerFileList": _list_of("ContainerFile"),
    "FileList": _list_of("File"),
    "CreateContainerFile": {
        "type": "object",
        "required": ["file_id"],
        "properties": {"file_id": {"type": "string"}},
    },
    "UploadContainerFile": {
        "type": "object",
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "file_id": {"type": "string"},
        },
    },
    "CreateFile": {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"enum": list(PURPOSES)},
            "expires_after[anchor]": {"const": "created_at"},
            "expires_after[seconds]": {
                "type": "integer",
                "minimum": SECONDS_MIN,
                "maximum": SECONDS_MAX,
            },
        },
    },
    "IngestTraces": {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "array", "items": {"type": "object"}}},
    },
    "TokenExchange": {
        "type": "object",
        "required": ["grant_type", "identity_provider_id", "service_account_id"],
        "properties": {
            "grant_type": {"type": "string", "enum": [TOKEN_EXCHANGE, JWT_BEARER]},
            "subject_token": {"type": "string"},
            "subject_token_type": {"type": "string", "enum": list(SUBJECT_TYPES)},
            "assertion": {"type": "string"},
            "identity_provider_id": {"type": "string"},
            "service_account_id": {"type": "string"},
        },
    },
    "TokenError": {
        "type": "object",
        "required": ["error", "error_description"],
        "properties": {"error": {"type": "string"}, "error_description": {"type": "string"}},
    },
    "AccessToken": {
        "type": "object",
        "required": ["access_token", "issued_token_type", "token_type", "expires_in"],
        "properties": {
            "access_token": {"type": "string"},
            "issued_token_type": {"type": "string"},
            "token_type": {"type": "string"},
            "expires_in": {"type": "integer"},
            "scope": {"type": "string"},
        },
    },
}


def document() -> Json:
    """Make the OpenAPI document, which takes about a second."""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Harmony Gateway",
            "version": __version__,
            "description": "The OpenAI Responses API in front of a fleet of gpt-oss servers. "
            "Only what is served is listed here.",
        },
        "servers": SERVERS,
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {**_OWN, **schemas()},
        },
    }


def encoded(made: Any) -> bytes:
    """Return the document as JSON with sorted keys: equal documents give equal bytes."""
    return orjson.dumps(made, option=orjson.OPT_SORT_KEYS) + b"\n"


def _operation(operation: Operation) -> Json:
    described: Json = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": {str(status): _answer(operation) for status in operation.statuses},
    }
    if operation.description:
        described["description"] = operation.description
    if parameters := operation.all_parameters:
        described["parameters"] = [_parameter(one) for one in parameters]
    if operation.body is not None:
        content = {"application/json": {"schema": {"$ref": REFERENCE + operation.body}}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.form is not None:
        form = {"multipart/form-data": {"schema": {"$ref": REFERENCE + operation.form}}}
        body = described.setdefault("requestBody", {"required": True, "content": {}})
        body["content"] |= form
    if operation.refusal is not None:
        refused = {"application/json": {"schema": {"$ref": REFERENCE + operation.refusal}}}
        described["responses"]["default"] = {"description": "An error.", "content": refused}
    if not operation.needs_key:
        described["security"] = []
        described["servers"] = [SERVERS[0]]
    return described


def _answer(operation: Operation) -> Json:
    content: Json = {}
    if operation.answer is not None:
        content[operation.media] = {"schema": {"$ref": REFERENCE + operation.answer}}
    elif operation.media != "application/json":
        content[operation.media] = {"schema": {"type": "string"}}
    if operation.events:
        kinds = [{"$ref": REFERENCE + name} for name in operation.events]
        schema = {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
        content["text/event-stream"] = {"schema": schema}
    return {"description": operation.summary + ".", **({"content": content} if content else {})}


def _parameter(parameter: Parameter) -> Json:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "required": parameter.place == "path",
        "schema": parameter.schema,
    }


def schemas() -> Json:
    """Return all schemas by public name, including those that they refer to."""
    adapters = [(name, "validation", TypeAdapter(kind)) for name, kind in TYPES.items()]
    found, shared = TypeAdapter.json_schemas(adapters, ref_template=f"{REFERENCE}{{model}}")  # type: ignore[arg-type]
    made: Json = dict(shared["$defs"])
    for name in TYPES:
        schema = found[name, "validation"]
        target = schema.get("$ref", "").removeprefix(REFERENCE)
        made[name] = made[target] if target else schema
    _extend(made["CreateResponse"])
    _admit_messages(made["CompactedResponse"])
    _admit_nulls(made)
    _admit_ours(made)
    _leave_out(made)
    _merge(made)
    return _shorten_names({name: made[name] for name in sorted(_reachable_names(made, TYPES))})


def _extend(create: Json) -> None:
    # Adds parameters that OpenAI's type lacks, and the descriptions of all.
    own: Json = CreateResponse.model_json_schema()["properties"]
    properties = create["properties"]
    for name in EXTENDED:
        properties[name] = own[name]
    properties["stream"] = {"type": "boolean", "default": False}
    for name in properties.keys() - UNSERVED_PROPERTIES:
        properties[name]["description"] = PARAMETERS[name]


def _admit_messages(compacted: Json) -> None:
    # The user's messages stay in a compacted context; OpenAI's type lacks them.
    members = compacted["properties"]["output"]["items"]
    message = {"$ref": f"{REFERENCE}ResponseInputMessageItem"}
    compacted["properties"]["output"]["items"] = {"anyOf": [members, message]}


def _admit_nulls(made: Json) -> None:
    # OpenAI sends null here, too, for unfinished completions and empty pages; its types lack it.
    lists = ("ConversationItemList", "ResponseItemList")
    ends = [(name, member) for name in lists for member in ("first_id", "last_id")]
    for name, member in (("CompletionChoice", "finish_reason"), *ends):
        properties = made[name]["properties"]
        properties[member] = {"anyOf": [properties[member], {"type": "null"}]}


def _admit_ours(made: Json) -> None:
    # Values that OpenAI's client takes, though its types lack them.
    made["ResponseError"]["properties"]["code"] = {"type": "string"}
    made["File"]["properties"]["purpose"]["enum"] = list(PURPOSES)
    delta = made["ChoiceDelta"]["properties"]["tool_calls"]["anyOf"][0]
    delta["items"] = {"anyOf": [delta["items"], _CUSTOM_CALL_DELTA]}


def _leave_out(made: Json) -> None:
    # Drops union members and properties that are not served, in place.
    unserved = {name for name, schema in made.items() if _is_unserved(schema)}
    prompt = made["CreateCompletion"]["properties"]["prompt"]
    for schema in _parts(made):
        if isinstance(properties := schema.get("properties"), dict):
            for name in UNSERVED_PROPERTIES & properties.keys():
                del properties[name]
            kind = properties.get("type", {})
            if "enum" in kind:
                kind["enum"] = [value for value in kind["enum"] if _is_served(value)]
        for word in ("anyOf", "oneOf"):
            if word in schema:
                schema[word] = [
                    one
                    for one in schema[word]
                    if one.get("$ref", "").removeprefix(REFERENCE) not in unserved
                ]
        schema.pop("discriminator", None)
        if isinstance(schema.get("title"), str):
            del schema["title"]
    made["CreateCompletion"]["properties"]["prompt"] = prompt


def _merge(made: Json) -> None:
    # The Python client has one module for each of several equal schemas.
    before = -1
    while before != len(made):
        before = len(made)
        first: dict[bytes, str] = {}
        same: dict[str, str] = {}
        for name in sorted(made, key=lambda name: (name not in TYPES, "__" in name, name)):
            spelled = orjson.dumps(made[name], option=orjson.OPT_SORT_KEYS)
            if first.setdefault(spelled, name) != name and name not in TYPES:
                same[name] = first[spelled]
        for part in _parts(made):
            target = part.get("$ref")
            if isinstance(target, str) and target.removeprefix(REFERENCE) in same:
                part["$ref"] = REFERENCE + same[target.removeprefix(REFERENCE)]
        for name in same:
            del made[name]


def _is_unserved(schema: Json) -> bool:
    # OpenAI's client knows this `type`, but the gateway does not serve it.
    kind = schema.get("properties", {}).get("type", {})
    values = kind.get("enum") or ([kind["const"]] if "const" in kind else [])
    return bool(values) and not any(map(_is_served, values))


def _is_served(value: str) -> bool:
    if _EVENT.match(value):
        return value in SERVED_EVENT_TYPES
    return value not in _KNOWN_TYPES or value in _SERVED_TYPES


def _parts(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        for part in list(value.values()):
            yield from _parts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _parts(part)


def _reachable_names(made: Json, roots: Any) -> set[str]:
    pending, seen = list(roots), set(roots)
    while pending:
        for part in _parts(made[pending.pop()]):
            name = part.get("$ref", "").removeprefix(REFERENCE)
            if name and name not in seen:
                seen.add(name)
                pending.append(name)
    return seen


def _shorten_names(made: Json) -> Json:
    # pydantic prefixes the path of a module to tell apart classes of the same name.
    shorter: dict[str, str] = {}
    for name in made:
        module, _, short = name.rpartition("__")
        if module:
            stem = "".join(word.title() for word in module.rpartition("__")[2].split("_"))
            short = short if short not in made and short not in shorter.values() else stem + short
        shorter[name] = short
    for part in _parts(made):
        if isinstance(target := part.get("$ref"), str):
            part["$ref"] = REFERENCE + shorter[target.removeprefix(REFERENCE)]
    return {shorter[name]: schema for name, schema in made.items()}
