"""Section 1.1: what a response is created from, and what becomes of it without its client.

`stop` is a parameter of this gateway; 1.1 has those beside which it stands.
"""

from __future__ import annotations

from tests.conformance.requirements.requirement import rules

_PARAMETERS = rules(
    "1.1",
    ("create.model", "model", "A request names a model that is served, or is refused."),
    (
        "create.input",
        "input",
        "The input is a text, which is one user message, or a list of items.",
    ),
    ("create.input.length", "input", "A text longer than 10,485,760 characters is refused."),
    (
        "create.input.absent",
        "input",
        "The input may be missing only where something else is continued.",
    ),
    (
        "create.instructions",
        "instructions",
        "Instructions stand in front of everything, and are echoed as they came, even empty.",
    ),
    (
        "create.instructions.not-inherited",
        "instructions",
        "Instructions are of one request: what continues a response does not have them.",
    ),
    (
        "create.previous-response-id",
        "previous_response_id",
        "A response and a conversation cannot both be continued.",
    ),
    (
        "create.conversation",
        "conversation",
        "The items of a conversation stand before the input; input and output are added to it.",
    ),
    (
        "create.conversation.unstored",
        "conversation",
        "What is not stored reads the conversation and adds nothing to it.",
    ),
    (
        "create.store",
        "store",
        "Responses are stored unless store is false; then no route finds them.",
    ),
    (
        "create.background",
        "background",
        "A background response is answered before it is over, and never over a connection.",
    ),
    ("create.stream", "stream", "With stream the answer is a stream of events."),
    (
        "create.stream-options",
        "stream_options",
        "Options of a stream are refused where there is none, and switch the padding off.",
    ),
    (
        "create.include",
        "include",
        "Each of the eight documented values is accepted, and another one is named by its place.",
    ),
    (
        "create.max-output-tokens",
        "max_output_tokens",
        "A bound below 16 tokens is refused; reasoning counts as well as text.",
    ),
    (
        "create.max-tool-calls",
        "max_tool_calls",
        "The bound of built-in calls is at least one, and leaves calls of functions alone.",
    ),
    (
        "create.metadata",
        "metadata",
        "Up to 16 pairs, of 64 and 512 characters, come back as they were sent.",
    ),
    ("create.moderation", "moderation", "Moderation by a service is refused, with what to do."),
    (
        "create.parallel-tool-calls",
        "parallel_tool_calls",
        "Without parallel calls a turn has one call at most; the default is true.",
    ),
    ("create.prompt", "prompt", "Templates of prompts are refused, with what to do instead."),
    ("create.prompt-cache-key", "prompt_cache_key", "A key of up to 64 characters is echoed."),
    (
        "create.prompt-cache-retention",
        "prompt_cache_retention",
        "Both documented retentions are accepted and echoed, and no other; they have no effect.",
    ),
    (
        "create.prompt-cache-options",
        "prompt_cache_options",
        "The options of the cache are checked; mode and lifetime have no effect.",
    ),
    (
        "create.prewarm",
        "prompt_cache_options",
        "With `prewarm` the context is prepared, and nothing is generated.",
    ),
    (
        "create.comparison-response",
        "prompt_cache_options",
        "Who names a response to compare the cache with is told that there is no comparison.",
    ),
    (
        "create.reasoning-effort",
        "reasoning",
        "The model is told the nearest effort that it knows, and the echo says which.",
    ),
    (
        "create.reasoning-effort.unknown",
        "reasoning",
        "An effort that is not documented is refused, and the message lists those that are.",
    ),
    (
        "create.reasoning-context",
        "reasoning",
        "Reasoning of the current turn is shown to the model; all turns are refused.",
    ),
    (
        "create.safety-identifier",
        "safety_identifier",
        "An identifier of up to 128 characters is echoed.",
    ),
    (
        "create.service-tier",
        "service_tier",
        "Every documented tier is accepted, and the response says which one was given.",
    ),
    ("create.temperature", "temperature", "From 0 to 2, and 1 where it is left out."),
    ("create.top-p", "top_p", "From 0 to 1, and 1 where it is left out."),
    (
        "create.top-logprobs",
        "top_logprobs",
        "From 0 to 20; more than 0 shows the probabilities without an include.",
    ),
    (
        "create.penalties",
        "presence_penalty, frequency_penalty",
        "From -2 to 2, and echoed as numbers, which are 0 where they are left out.",
    ),
    (
        "create.text-format",
        "text",
        "The format is plain text unless it is JSON; the name of a schema has up to 64 characters.",
    ),
    ("create.text-verbosity", "text", "The verbosity is low, medium or high, and echoed."),
    (
        "create.tools",
        "tools",
        "Functions, custom tools, namespaces and the client's shells are offered to the model.",
    ),
    ("create.tool-choice", "tool_choice", "The model chooses, unless the request does."),
    (
        "create.truncation",
        "truncation",
        "What does not fit is refused, or with auto loses its oldest turns.",
    ),
    (
        "create.context-management",
        "context_management",
        "Compaction from a threshold of at least 1000 tokens on; there is no other kind.",
    ),
    ("create.image", "image", "The options of images are accepted, named and without effect."),
    (
        "create.access-programs",
        "access_programs",
        "Programs of access are accepted, named and without effect.",
    ),
    (
        "create.background-options",
        "background_options",
        "Options of background responses are accepted, named and without effect.",
    ),
    ("create.user", "user", "The deprecated name of a user is echoed."),
    (
        "create.generate",
        "generate",
        "A warm-up by that name is of connections only: over HTTP it is refused, with what to use.",
    ),
    (
        "create.stream-id",
        "stream_id",
        "Lanes are of connections only: over HTTP the parameter is named and has no effect.",
    ),
    (
        "create.unknown-parameters",
        "(keys that are not listed)",
        "An unknown parameter is named in a header, and refused where the operator is strict.",
    ),
    (
        "create.validation-order",
        "Validation order",
        "Of several mistakes one is reported: what is missing, unknown, ill-typed, then senseless.",
    ),
    ("control.strict-function", "tools", "The arguments of a strict function satisfy its schema."),
    (
        "control.json-schema",
        "text",
        "The answer in a strict format satisfies its schema, streamed or not.",
    ),
    ("control.json-object", "text", "The answer in the format json_object is a JSON object."),
    (
        "control.format-is-checked",
        "text",
        "A schema that cannot bind an answer is refused with 400, and so is one without a name.",
    ),
    (
        "control.hosted-tools",
        "tools",
        "Tools of a server that are not run here are dropped, and the response says which.",
    ),
    (
        "control.hosted-run",
        "tools",
        "Web search, code interpreter and MCP servers are run within the response if enabled.",
    ),
    (
        "control.approvals",
        "tools",
        "A call of an MCP tool is asked for, and made once when it was approved.",
    ),
    ("control.summary", "reasoning", "Reasoning has a summary where one is asked for."),
    ("control.stop", "(beside top_p)", "A stop ends the answer and is not part of it."),
)
_MODES = rules(
    "1.1",
    (
        "modes.stored-body",
        "matrix T F F",
        "A stored body comes when it is over, and can be retrieved from then on.",
    ),
    (
        "modes.stored-stream",
        "matrix T F T",
        "A stored stream can be retrieved as a body, and not be streamed again.",
    ),
    (
        "modes.background-body",
        "matrix T T F",
        "A background body is a snapshot at once, to be polled.",
    ),
    (
        "modes.background-stream",
        "matrix T T T",
        "A background stream begins at once, and can be resumed and cancelled.",
    ),
    ("modes.unstored", "matrix F F", "What is not stored is answered, and never found again."),
    (
        "background.answered-at-once",
        "background",
        "A background response is answered at once and can be polled until it is over.",
    ),
    (
        "background.needs-store",
        "matrix F T",
        "A background response that is not to be stored is refused with 400.",
    ),
    (
        "background.survives-disconnect",
        "Client disconnect",
        "A client that hangs up does not end a background response.",
    ),
    (
        "disconnect.cancel",
        "Client disconnect",
        "A client that hangs up ends a response that is neither background nor kept.",
    ),
    (
        "disconnect.continue",
        "Client disconnect",
        "By a tenant's policy a stored response goes on without its client, and can be resumed.",
    ),
)
REQUESTS = rules(
    "1",
    (
        "http.accept-is-not-asked",
        "Common",
        "Whether there is a stream is decided by the body, never by the Accept header.",
    ),
    (
        "http.arrays-in-queries",
        "Common",
        "Arrays in a query are taken with brackets, with encoded ones, and without.",
    ),
    (
        "http.booleans-in-queries",
        "Common",
        "Booleans in a query are the words true and false; 1 is refused.",
    ),
    ("http.beta-is-ignored", "0.1", "The query beta=true changes nothing."),
    (
        "http.ids",
        "0.3",
        "Ids have the prefix of their kind, and those of one response are told apart.",
    ),
    (
        "http.ids-of-clients",
        "0.3",
        "An id in the input may have any prefix, but only letters, digits, lines and dashes.",
    ),
)
CREATE = (*REQUESTS, *_PARAMETERS, *_MODES)
