"""Section 2: the Response object."""

from __future__ import annotations

from tests.conformance.requirements.requirement import rules

_FIELDS = rules(
    "2.1",
    ("response.id", "id", "The id is a string with the prefix of responses."),
    ("response.object", "object", "The object is named response."),
    ("response.created-at", "created_at", "The time of creation is an integer of seconds."),
    (
        "response.completed-at",
        "completed_at",
        "The time of completion is there only when the status is completed.",
    ),
    ("response.status", "status", "The status is one of the six of the machine."),
    ("response.background", "background", "Whether it is a background response is a boolean."),
    ("response.error", "error", "The error has a code and a message, and is null without one."),
    (
        "response.incomplete-details",
        "incomplete_details",
        "The details say the reason of an incomplete response, and are null otherwise.",
    ),
    ("response.instructions", "instructions", "The instructions are a text or null."),
    ("response.max-output-tokens", "max_output_tokens", "The bound is echoed, or null."),
    ("response.max-tool-calls", "max_tool_calls", "The bound of calls is echoed, or null."),
    ("response.metadata", "metadata", "The metadata is an object, empty where there is none."),
    ("response.model", "model", "The model is the one that answers, under its own name."),
    ("response.output", "output", "The output is a list, empty before there is an item."),
    ("response.output-text", "output_text", "The convenience of the SDK is not sent."),
    (
        "response.parallel-tool-calls",
        "parallel_tool_calls",
        "Whether calls may be parallel is a boolean.",
    ),
    (
        "response.previous-response-id",
        "previous_response_id",
        "The id of what was continued is echoed, or null.",
    ),
    (
        "response.conversation",
        "conversation",
        "The conversation is shown to those who used one, and to nobody else.",
    ),
    ("response.prompt", "prompt", "No template of a prompt is shown, as none is served."),
    ("response.prompt-cache-key", "prompt_cache_key", "The key of the cache is echoed, or null."),
    (
        "response.prompt-cache-options",
        "prompt_cache_retention, prompt_cache_options, prompt_cache_diagnostics",
        "The optional fields of the cache are left out, but for the retention that was asked for.",
    ),
    (
        "response.reasoning",
        "reasoning",
        "Effort and summary are both there; the effort is the one that the model was told.",
    ),
    ("response.safety-identifier", "safety_identifier", "The identifier is echoed, or null."),
    ("response.service-tier", "service_tier", "The tier is a string, never null."),
    ("response.store", "store", "Whether it is stored is a boolean."),
    ("response.sampling", "temperature, top_p", "Both are numbers, never null."),
    ("response.penalties", "presence_penalty, frequency_penalty", "Both are numbers, never null."),
    ("response.text", "text", "The format of the text is always there, the schema in full."),
    ("response.tool-choice", "tool_choice", "The choice is echoed in a documented form."),
    (
        "response.tools",
        "tools",
        "Functions have name, description, parameters and strict, even when these are null.",
    ),
    ("response.top-logprobs", "top_logprobs", "The number of alternatives is an integer."),
    ("response.truncation", "truncation", "The truncation is auto or disabled."),
    ("response.usage", "usage", "The usage is null until the response is over."),
    ("response.user", "user", "The user is echoed, or null."),
    (
        "response.optional-fields",
        "tool_usage, moderation, image, input_transformations, access_programs",
        "Optional fields of what is not served are left out.",
    ),
    (
        "usage.details",
        "usage",
        "Usage has both kinds of details, with cached, cache-written and reasoning tokens.",
    ),
    ("usage.adds-up", "usage", "The total is that of input and output."),
    ("usage.reasoning", "usage", "Reasoning tokens are those of the analysis channel alone."),
    ("usage.sum-of-turns", "usage", "The usage of several turns of sampling is their sum."),
    ("usage.exact", "usage", "Tokens are counted as ids: what went in, and what came out."),
    (
        "background.same-as-foreground",
        "every field",
        "A background response ends as the body that a foreground one would have had.",
    ),
)
_STATUSES = rules(
    "2.2",
    (
        "status.transitions",
        "Status machine",
        "A status changes only along the machine, and an end is final.",
    ),
    (
        "status.foreground-starts-in-progress",
        "Status machine",
        "What is not in the background begins in progress.",
    ),
    ("status.queued", "queued", "What is queued has no output, no error and no details."),
    ("status.in-progress", "in_progress", "What is in progress shows what there is so far."),
    ("status.completed", "completed", "What is completed says when, and nothing of a failure."),
    ("status.failed", "failed", "What failed says why, and keeps what it had said."),
    (
        "status.incomplete",
        "incomplete",
        "What is incomplete says why, and its last item is incomplete.",
    ),
    ("status.cancelled", "cancelled", "What is cancelled has neither an error nor details."),
    (
        "status.ends-on-calls",
        "Ending on function calls",
        "A response that ends with a call is completed.",
    ),
    ("status.shutdown", "Host shutdown", "A foreground response whose process died has failed."),
    (
        "replicas.drain",
        "Host shutdown",
        "When a replica ends, others go on with its background responses.",
    ),
)
_CODES = rules(
    "2.3",
    (
        "error-code.documented",
        "enum",
        "The codes of failed responses are documented ones, or said to be the gateway's own.",
    ),
    (
        "error-code.backend",
        "Backend unreachable / bad tokens",
        "A backend that breaks off, or says nothing readable, is a server_error.",
    ),
)
RESPONSE_OBJECT = (*_FIELDS, *_STATUSES, *_CODES)
