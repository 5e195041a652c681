"""Section 6: Open Responses, its rules, the cases of its compliance suite and their traps.

0.2 has the conflicts between the two specifications, which decide what the dialects are.
"""

from __future__ import annotations

from tests.conformance.requirements.requirement import rules

_CONFLICTS = rules(
    "0.2",
    (
        "open-responses.reasoning-names",
        "C1",
        "Reasoning is streamed under the names of the dialect, never under both.",
    ),
    (
        "open-responses.dialect-is-a-spelling",
        "C1",
        "A response is the same in both dialects, and can be followed and resumed in either.",
    ),
    (
        "open-responses.other-calls-are-functions",
        "C9",
        "Calls that the specification does not know are shown as calls of functions.",
    ),
)
_RULES = rules(
    "6.1",
    (
        "open-responses.request-is-json",
        "(1)",
        "A request is JSON, whatever its content type is called; no form is taken for one.",
    ),
    (
        "open-responses.media-types",
        "(2)",
        "A body is application/json; a stream is text/event-stream and ends with [DONE].",
    ),
    (
        "open-responses.event-names",
        "(2)",
        "The event field of every frame equals the type in its data, and no frame has an id.",
    ),
    (
        "open-responses.items-are-identified",
        "(3)",
        "Every output item has an id, a type and a status.",
    ),
    (
        "open-responses.parts-are-wrapped",
        "(4)",
        "Content that streams stands between the adding of its part and the end of it.",
    ),
    (
        "open-responses.incomplete-item-is-last",
        "(5)",
        "An incomplete item is the last one and makes its response incomplete.",
    ),
    (
        "open-responses.error-then-failed",
        "(6)",
        "A failure while streaming is an error event and then response.failed.",
    ),
    (
        "open-responses.previous-response",
        "(7)",
        "previous_response_id loads the input and the output before it, in their order.",
    ),
    (
        "control.allowed-tools",
        "(8)",
        "Of all tools in the prompt only the allowed ones are called; the echo says the mode.",
    ),
    (
        "open-responses.truncation-disabled",
        "(8)",
        "Without truncation an input that is too long is refused, not shortened.",
    ),
    (
        "open-responses.no-extensions",
        "(9)",
        "No event and no item is an extension of the specification's.",
    ),
    (
        "open-responses.dialect",
        "(10)",
        "In the dialect every event and every body is one of the specification's.",
    ),
    (
        "open-responses.phases",
        "(11)",
        "What was added in April 2026 is there: phases, connections, compaction.",
    ),
    (
        "open-responses.union",
        "(12)",
        "What is streamed is of the 24 types of the specification, tools of other kinds too.",
    ),
    (
        "open-responses.compaction-in-a-stream",
        "(12)",
        "A compaction within a response is streamed without the event that is not listed.",
    ),
)
_CASES = rules(
    "6.3",
    (
        "open-responses.basic-response",
        "basic-response",
        "A user message is answered by a completed response with output.",
    ),
    (
        "open-responses.assistant-phase",
        "assistant-phase",
        "Assistant messages with a phase are accepted as history.",
    ),
    (
        "open-responses.output-phase-schema",
        "response-output-phase-schema",
        "The phase of a message of the output is of the specification's schema.",
    ),
    (
        "open-responses.streaming-response",
        "streaming-response",
        "Every event of a stream is one of the specification's, and the last one is completed.",
    ),
    (
        "open-responses.websocket-response",
        "websocket-response",
        "A turn of a connection is the events of a stream, one a frame.",
    ),
    (
        "open-responses.websocket-sequential-responses",
        "websocket-sequential-responses",
        "Two turns of a connection follow each other.",
    ),
    (
        "open-responses.websocket-continuation",
        "websocket-continuation",
        "A connection can continue a response that was not stored.",
    ),
    (
        "open-responses.websocket-reconnect",
        "websocket-reconnect-store-false-recovery",
        "Another connection cannot, is told so, and can still be used.",
    ),
    (
        "open-responses.websocket-previous-response-not-found",
        "websocket-previous-response-not-found",
        "A response that is unknown has a code of its own.",
    ),
    (
        "open-responses.websocket-failed-continuation",
        "websocket-failed-continuation-evicts-cache",
        "A continuation that fails makes what it continued unknown.",
    ),
    (
        "open-responses.websocket-compact-new-chain",
        "websocket-compact-new-chain",
        "A connection can begin with what was compacted.",
    ),
    (
        "open-responses.system-prompt",
        "system-prompt",
        "A system message is accepted in front of a user's.",
    ),
    (
        "open-responses.tool-calling",
        "tool-calling",
        "A request that needs the offered function is answered by a call of it.",
    ),
    (
        "open-responses.image-input",
        "image-input",
        "A message with an image is answered, though the model reads only text.",
    ),
    ("open-responses.multi-turn", "multi-turn", "A conversation in the input is remembered."),
    (
        "open-responses.compact-response",
        "compact-response",
        "A conversation is compacted to items with a compaction among them.",
    ),
    (
        "open-responses.compact-missing-model",
        "compact-missing-model",
        "A compaction without a model is refused.",
    ),
    (
        "open-responses.tool-calling-streaming",
        "tool-calling-streaming",
        "A streamed call is added, has its arguments in deltas, and is done.",
    ),
)
_TRAPS = rules(
    "6.4",
    (
        "traps.reasoning-names",
        "Reasoning deltas",
        "No event of a stream in the dialect has OpenAI's name of reasoning.",
    ),
    (
        "traps.one-error-frame",
        "only the error frame",
        "A refused turn is one frame: no end of a response and no end mark follow it.",
    ),
    (
        "traps.string-codes",
        "string error.code",
        "The code of an error frame is a string, and its status an integer.",
    ),
    (
        "traps.whole-events",
        "LF, single-chunk events",
        "Events are sent whole, with line feeds only.",
    ),
    (
        "traps.tools-echo",
        "tools echo",
        "A function that came by its name alone is echoed with every key.",
    ),
    (
        "traps.no-nulls",
        "Do not emit null",
        "Optional fields of items and parts are left out, never null.",
    ),
    ("traps.one-path", "one path", "HTTP and connections share a path, and a key."),
    (
        "traps.default-effort",
        "run with low/medium default effort",
        "The effort is medium where a request and the operator say nothing.",
    ),
)
OPEN_RESPONSES = (*_CONFLICTS, *_RULES, *_CASES, *_TRAPS)
