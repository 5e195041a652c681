"""What the API promises, where that is written, and by which id tests refer to it.

`responses-api`: the reference of the Responses API; `6.3` are the cases of the Open Responses
compliance suite, `7` those of the compatibility test for providers of gpt-oss.
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
)
