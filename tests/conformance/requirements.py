"""What the API promises, where that is written, and by which id tests refer to it.

`responses-api`: the reference of the Responses API; `6.3` are the cases of the Open Responses
compliance suite, `7` those of the compatibility test for providers of gpt-oss. `5.4` has the
header `Idempotency-Key`, which OpenAI does not promise, and leaves what it means to the server.
`stop` is a parameter of this gateway; `1.1` has those beside which it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Requirement:
    """`source` names a section of the reference, `sentence` what holds."""

    id: str
    source: str
    sentence: str


REQUIREMENTS: Final = (
    Requirement(
        "open-responses.basic-response",
        "responses-api 6.3 basic-response",
        "A user message is answered by a completed response with output.",
    ),
    Requirement(
        "open-responses.assistant-phase",
        "responses-api 6.3 assistant-phase",
        "Assistant messages with a phase are accepted as history.",
    ),
    Requirement(
        "open-responses.streaming-response",
        "responses-api 6.3 streaming-response",
        "Every event of a stream is one of the specification's, and the last one is completed.",
    ),
    Requirement(
        "open-responses.system-prompt",
        "responses-api 6.3 system-prompt",
        "A system message is accepted in front of a user's.",
    ),
    Requirement(
        "open-responses.tool-calling",
        "responses-api 6.3 tool-calling",
        "A request that needs the offered function is answered by a call of it.",
    ),
    Requirement(
        "open-responses.tool-calling-streaming",
        "responses-api 6.3 tool-calling-streaming",
        "A streamed call is added, has its arguments in deltas, and is done.",
    ),
    Requirement(
        "open-responses.image-input",
        "responses-api 6.3 image-input",
        "A message with an image is answered, though the model reads only text.",
    ),
    Requirement(
        "open-responses.multi-turn",
        "responses-api 6.3 multi-turn",
        "A conversation in the input is remembered.",
    ),
    Requirement(
        "open-responses.media-types",
        "responses-api 6.1 (2)",
        "A body is application/json; a stream is text/event-stream and ends with [DONE].",
    ),
    Requirement(
        "open-responses.event-names",
        "responses-api 6.1 (2)",
        "The event field of every frame equals the type in its data, and no frame has an id.",
    ),
    Requirement(
        "open-responses.items-are-identified",
        "responses-api 6.1 (3)",
        "Every output item has an id, a type and a status.",
    ),
    Requirement(
        "open-responses.incomplete-item-is-last",
        "responses-api 6.1 (5)",
        "An incomplete item is the last one and makes its response incomplete.",
    ),
    Requirement(
        "open-responses.error-then-failed",
        "responses-api 6.1 (6)",
        "A failure while streaming is an error event and then response.failed.",
    ),
    Requirement(
        "open-responses.previous-response",
        "responses-api 6.1 (7)",
        "previous_response_id loads the input and the output before it, in their order.",
    ),
    Requirement(
        "open-responses.truncation-disabled",
        "responses-api 6.1 (8)",
        "Without truncation an input that is too long is refused, not shortened.",
    ),
    Requirement(
        "gpt-oss.tool-is-called",
        "responses-api 7.4 (1)",
        "The expected tool is called, with arguments that are valid against its schema.",
    ),
    Requirement(
        "gpt-oss.reasoning-is-shown",
        "responses-api 7.4 (2)",
        "The first response has a reasoning item whose parts are non-empty reasoning text.",
    ),
    Requirement(
        "gpt-oss.replay-ends-in-a-message",
        "responses-api 7.3",
        "Reasoning, call and output sent back as items are answered by a message.",
    ),
    Requirement(
        "background.answered-at-once",
        "responses-api 1.1",
        "A background response is answered at once and can be polled until it is over.",
    ),
    Requirement(
        "background.needs-store",
        "responses-api 1.1",
        "A background response that is not to be stored is refused with 400.",
    ),
    Requirement(
        "background.queued-first",
        "responses-api 4.3",
        "The stream of a background response begins with created, queued, in_progress.",
    ),
    Requirement(
        "background.survives-disconnect",
        "responses-api 1.1",
        "A client that hangs up does not end a background response.",
    ),
    Requirement(
        "background.snapshot",
        "responses-api 1.4",
        "A running background response is returned as far as it has come.",
    ),
    Requirement(
        "background.input-items",
        "responses-api 1.7",
        "The input of a background response is listed while it runs.",
    ),
    Requirement(
        "background.in-flight-is-not-deleted",
        "responses-api 1.5",
        "A background response in flight is not deleted.",
    ),
    Requirement(
        "background.continued-when-over",
        "responses-api 1.2",
        "A response that is still running cannot be continued.",
    ),
    Requirement(
        "background.queue-is-bounded",
        "responses-api 5.2",
        "More background responses than may wait are refused with 429 and Retry-After.",
    ),
    Requirement(
        "background.same-as-foreground",
        "responses-api 2.1",
        "A background response ends as the body that a foreground one would have had.",
    ),
    Requirement(
        "replay.byte-identical",
        "responses-api 1.4",
        "A stream is resumed after any event with the bytes that were sent before.",
    ),
    Requirement(
        "replay.only-background-streams",
        "responses-api 1.4",
        "What was not created with background and stream cannot be streamed again.",
    ),
    Requirement(
        "replay.nothing-left",
        "responses-api 1.4",
        "At and beyond the end of a stream there is only the end mark.",
    ),
    Requirement(
        "replay.waits",
        "responses-api 1.4",
        "A reader that is ahead of a running stream waits for what comes after its place.",
    ),
    Requirement(
        "replay.expires",
        "responses-api 1.4",
        "When its log is no longer kept, a response is refused as a stream, and still returned.",
    ),
    Requirement(
        "cancel.running",
        "responses-api 1.6",
        "A running background response is cancelled and keeps what it had said.",
    ),
    Requirement(
        "cancel.queued",
        "responses-api 1.6",
        "A queued background response is cancelled before it begins.",
    ),
    Requirement(
        "cancel.twice",
        "responses-api 1.6",
        "Cancelling twice returns the same response.",
    ),
    Requirement(
        "cancel.finished",
        "responses-api 1.6",
        "What has ended, and what is synchronous, cannot be cancelled.",
    ),
    Requirement(
        "cancel.streams-end",
        "responses-api 1.6",
        "The streams of a cancelled response end with response.failed of status cancelled.",
    ),
    Requirement(
        "disconnect.cancel",
        "responses-api 1.1",
        "A client that hangs up ends a response that is neither background nor kept.",
    ),
    Requirement(
        "disconnect.continue",
        "responses-api 1.1",
        "By a tenant's policy a stored response goes on without its client, and can be resumed.",
    ),
    Requirement(
        "disconnect.key",
        "responses-api 5.4",
        "A response with an Idempotency-Key goes on without its client.",
    ),
    Requirement(
        "idempotency.same-response",
        "responses-api 5.4",
        "The same key with the same body returns the same response, byte for byte.",
    ),
    Requirement(
        "idempotency.running",
        "responses-api 5.4",
        "A repeat of what still runs follows it, or waits for it.",
    ),
    Requirement(
        "idempotency.concurrent",
        "responses-api 5.4",
        "Of requests with one key at the same moment one is generated, and one is charged.",
    ),
    Requirement(
        "idempotency.other-body",
        "responses-api 5.4",
        "A key that was used with another body is refused with 400.",
    ),
    Requirement(
        "idempotency.failure-frees-the-key",
        "responses-api 5.4",
        "What failed before its first token may be sent again with its key.",
    ),
    Requirement(
        "idempotency.key-is-checked",
        "responses-api 5.4",
        "A key has 1 to 255 visible characters, and its response is stored.",
    ),
    Requirement(
        "tenants.walls",
        "responses-api 1.4",
        "What belongs to another tenant looks like what never existed, for every use.",
    ),
    Requirement(
        "replicas.same-stream",
        "responses-api 4.7",
        "Every replica shows the same stream, without a gap or a repetition.",
    ),
    Requirement(
        "replicas.cancel",
        "responses-api 1.6",
        "Any replica cancels what another generates.",
    ),
    Requirement(
        "replicas.drain",
        "responses-api 2.2",
        "When a replica ends, others go on with its background responses.",
    ),
    Requirement(
        "control.required",
        "responses-api 1.3",
        "With a required call a response does not end without one.",
    ),
    Requirement(
        "control.named",
        "responses-api 1.3",
        "The named function is called, and no other.",
    ),
    Requirement(
        "control.none",
        "responses-api 1.3",
        "With tools that must not be called there is an answer, and no call.",
    ),
    Requirement(
        "control.allowed-tools",
        "responses-api 6.1 (8)",
        "Of all tools in the prompt only the allowed ones are called; the echo says the mode.",
    ),
    Requirement(
        "control.choice-is-checked",
        "responses-api 1.3",
        "A choice of a tool that the request does not have is refused with 400.",
    ),
    Requirement(
        "control.strict-function",
        "responses-api 1.1",
        "The arguments of a strict function satisfy its schema.",
    ),
    Requirement(
        "control.json-schema",
        "responses-api 1.1",
        "The answer in a strict format satisfies its schema, streamed or not.",
    ),
    Requirement(
        "control.json-object",
        "responses-api 1.1",
        "The answer in the format json_object is a JSON object.",
    ),
    Requirement(
        "control.format-is-checked",
        "responses-api 1.1",
        "A schema that cannot bind an answer is refused with 400, and so is one without a name.",
    ),
    Requirement(
        "control.custom-tool",
        "responses-api 3.3",
        "A custom tool is called with a text, and its output is accepted back.",
    ),
    Requirement(
        "control.grammar",
        "responses-api 3.3",
        "The input of a custom tool is of its grammar, or the response fails.",
    ),
    Requirement(
        "control.namespace",
        "responses-api 3.3",
        "A call of a tool in a namespace comes back with name and namespace apart.",
    ),
    Requirement(
        "control.shells",
        "responses-api 3.3",
        "Calls of the shells and the patcher are items of their own types.",
    ),
    Requirement(
        "control.hosted-tools",
        "responses-api 1.1",
        "Tools that would run at a server are dropped, and the response says which.",
    ),
    Requirement(
        "control.items-of-every-kind",
        "responses-api 3.1",
        "Output items of every kind that a client executes are accepted back as input.",
    ),
    Requirement(
        "control.logprobs",
        "responses-api 3.2",
        "Log probabilities are those of the tokens that spell the answer.",
    ),
    Requirement(
        "control.sealed-reasoning",
        "responses-api 3.1",
        "Sealed reasoning is accepted back; what was not sealed here is refused with 400.",
    ),
    Requirement(
        "control.summary",
        "responses-api 1.1",
        "Reasoning has a summary where one is asked for.",
    ),
    Requirement(
        "control.stop",
        "responses-api 1.1",
        "A stop ends the answer and is not part of it.",
    ),
)
