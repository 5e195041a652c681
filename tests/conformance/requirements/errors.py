"""Section 5: errors and headers over HTTP.

5.4 has the header `Idempotency-Key`, which OpenAI does not promise, and leaves what it means to
the server.
"""

from __future__ import annotations

from tests.conformance.requirements.requirement import rules

_ENVELOPE = rules(
    "5.1",
    ("error.envelope", "Envelope", "An error has four keys, always, and is JSON."),
    ("error.no-framework-shapes", "Envelope", "No error has the shape of a framework."),
    (
        "open-responses.errors",
        "Envelope",
        "In the dialect the envelope holds one of the specification's errors.",
    ),
)
_STATUSES = rules(
    "5.2",
    ("error.unparsable", "400 unparsable JSON", "What is no JSON is told so, without a code."),
    ("error.missing", "400 missing_required_parameter", "What is missing is named."),
    (
        "error.unknown-parameter",
        "400 unknown_parameter",
        "A strict gateway names what it does not know.",
    ),
    ("error.unsupported-parameter", "400 unsupported_parameter", "What is not served is named."),
    ("error.unsupported-value", "400 unsupported_value", "Values that are supported are listed."),
    ("error.type", "400 invalid_type", "Both types are named: the expected and the given one."),
    ("error.value", "400 invalid_value", "A wrong word is repeated beside the right ones."),
    (
        "error.number-bounds",
        "400 integer_… / decimal_…",
        "A number beyond its bound is told the bound, by one of four codes.",
    ),
    (
        "error.lengths",
        "400 string_… / object_… / array_… / empty_array",
        "What is too long, too short or too many is told the bound and its own length.",
    ),
    (
        "error.context-length",
        "400 context_length_exceeded",
        "An input beyond the window has a code of its own, for the input.",
    ),
    (
        "error.previous-response",
        "400 previous_response_not_found",
        "A response that cannot be continued has a code of its own.",
    ),
    (
        "error.model-of-a-request",
        "400 model_not_found",
        "An unknown model has a code of its own, with the status that chat has: 404.",
    ),
    (
        "error.conversation-locked",
        "400 conversation_locked",
        "A conversation in use has a code of its own.",
    ),
    (
        "error.unknown-urls",
        "404 (no code)",
        "What is not served is 404, without a key too, and tells which URL was meant.",
    ),
    (
        "error.other-apis",
        "400 unsupported_parameter",
        "Parameters of another API that would change the answer are refused with the one to use.",
    ),
    (
        "error.malformed-schemas",
        "400 invalid_encrypted_content, invalid_json_schema, invalid_function_parameters",
        "What is no JSON schema is refused at create wherever a schema may stand, except in a "
        "function that is not strict, which is only shown.",
    ),
    (
        "error.schemas",
        "400 invalid_encrypted_content, invalid_json_schema, invalid_function_parameters",
        "Seals and schemas that cannot be used have codes of their own.",
    ),
    (
        "error.mutually-exclusive",
        "400 mutually_exclusive_parameters",
        "Two parameters that exclude each other are both named.",
    ),
    ("error.wrong-key", "401 invalid_api_key", "A wrong key is told so, and never shown whole."),
    ("error.no-key", "401 header missing", "A request without a key is told how to send one."),
    (
        "error.forbidden",
        "403",
        "What a key may not do has its status and a code, and is not tried again.",
    ),
    ("error.not-found", "404", "What is not there is named: a response, an item, a URL."),
    ("error.model-not-found", "404 model_not_found", "A model that is not there is a 404."),
    ("error.method", "405", "A wrong method is told the right ones."),
    ("error.no-409", "409", "No error is one that SDKs would repeat by themselves: 409."),
    ("error.too-large", "413", "A body that is too large is told the bound."),
    ("error.no-422", "422", "No error is a 422."),
    ("error.rate-limit", "429 rate_limit_exceeded", "Too much at once says when to try again."),
    (
        "background.queue-is-bounded",
        "429 rate_limit_exceeded",
        "More background responses than may wait are refused with 429 and Retry-After.",
    ),
    (
        "error.quota",
        "429 insufficient_quota",
        "What no waiting helps with tells SDKs not to try again.",
    ),
    ("error.client-gone", "499", "A client that has left is answered nothing, and logged."),
    ("error.server", "500", "A defect is a server_error that shows nothing of the inside."),
    ("error.overloaded", "502/503/504", "Without a backend the client is told when to try again."),
    ("error.param-paths", "param", "A parameter is named by its path, with dots and brackets."),
)
_RETRIES = rules(
    "5.3",
    (
        "retry.statuses",
        "Retries on",
        "What repeating helps with has a status that SDKs repeat, and nothing else has.",
    ),
    ("retry.should-retry", "x-should-retry", "What SDKs would repeat in vain tells them not to."),
    ("retry.delay", "Delay", "The delay is in seconds, from 1 to 120."),
    ("retry.classes", "Status→class", "SDKs raise the class, code and param of the refusal."),
    (
        "retry.repeats",
        "Retries re-POST",
        "A create that is repeated with its key does not run twice.",
    ),
)
_HEADERS = rules(
    "5.4",
    ("header.request-id", "x-request-id", "Every answer has an id of its own, errors too."),
    ("header.processing-ms", "openai-processing-ms", "Every answer says how long it took."),
    ("header.version", "openai-version", "Every answer names the version of the API."),
    ("header.organization", "openai-organization", "An answer to a key names its tenant."),
    (
        "header.project",
        "openai-project",
        "A project or an organization that is not the key's is refused.",
    ),
    (
        "header.rate-limits",
        "x-ratelimit-*",
        "Answers to a key with limits say what is left of them; without limits none are claimed.",
    ),
    ("header.retry-after", "Retry-After", "A 429 says in whole seconds when to try again."),
    ("header.of-the-post", "Background", "Every request has headers of its own, replays too."),
    ("header.authorization", "Authorization", "Every route but the public ones needs a key."),
    (
        "header.ignored",
        "OpenAI-Beta, X-Stainless-*",
        "What a client says of itself changes nothing.",
    ),
    (
        "header.client-request-id",
        "X-Client-Request-Id",
        "A client's own id is logged, and refused where no log should have it.",
    ),
    (
        "disconnect.key",
        "Idempotency-Key",
        "A response with an Idempotency-Key goes on without its client.",
    ),
    (
        "idempotency.same-response",
        "Idempotency-Key",
        "The same key with the same body returns the same response, byte for byte.",
    ),
    (
        "idempotency.running",
        "Idempotency-Key",
        "A repeat of what still runs follows it, or waits for it.",
    ),
    (
        "idempotency.concurrent",
        "Idempotency-Key",
        "Of requests with one key at the same moment one is generated, and one is charged.",
    ),
    (
        "idempotency.other-body",
        "Idempotency-Key",
        "A key that was used with another body is refused with 400.",
    ),
    (
        "idempotency.failure-frees-the-key",
        "Idempotency-Key",
        "What failed before its first token may be sent again with its key.",
    ),
    (
        "idempotency.key-is-checked",
        "Idempotency-Key",
        "A key has 1 to 255 visible characters, and its response is stored.",
    ),
    ("header.size", "Total request headers", "Headers of up to 64 KiB are taken."),
)
ERRORS = (*_ENVELOPE, *_STATUSES, *_RETRIES, *_HEADERS)
