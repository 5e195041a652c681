"""Section 1.12: turns over one connection."""

from __future__ import annotations

from tests.conformance.requirements.requirement import rules

WEBSOCKET = rules(
    "1.12",
    ("websocket.upgrade", "Upgrade", "The path of the responses is upgraded by the same key."),
    ("websocket.codex", "Upgrade", "The header that Codex asks with is accepted."),
    (
        "websocket.frames",
        "One JSON text frame",
        "Each event is one text frame of JSON, without an end mark.",
    ),
    (
        "websocket.create",
        "response.create",
        "A turn has the parameters of a request at its top level.",
    ),
    (
        "websocket.not-sent",
        "stream, stream_options, background",
        "What happens anyway may be sent unless one is strict; what does not happen here may not.",
    ),
    (
        "websocket.steer",
        "response.steer",
        "A steer is given back with the code that says it is not supported.",
    ),
    (
        "websocket.stream-id",
        "Server events",
        "Every frame of a turn says its lane when the turn did.",
    ),
    ("websocket.lane-order", "Rules: FIFO", "Turns of one lane follow each other in their order."),
    (
        "websocket.default-lane",
        "Rules: without stream_id",
        "Without a name there is one lane, whose turns never overlap.",
    ),
    (
        "websocket.lanes-run-together",
        "Rules: lanes",
        "Turns of different lanes run at the same time, up to a bound; the others wait.",
    ),
    (
        "websocket.lanes-are-bounded",
        "Rules: lanes",
        "A lane too many, or one whose name is none, is refused by a code of its own.",
    ),
    (
        "websocket.memory",
        "Connection-local cache",
        "The latest response of a lane is continued though it is not stored.",
    ),
    (
        "websocket.stored-is-found",
        "Connection-local cache",
        "What the connection does not remember is looked up where responses are stored.",
    ),
    (
        "websocket.failure-evicts",
        "same-lane continuation",
        "A continuation on the same lane that fails makes what it continued unknown.",
    ),
    (
        "websocket.fork-keeps",
        "cross-lane fork",
        "A fork on another lane that fails leaves what it continued alone.",
    ),
    (
        "websocket.reconnect",
        "After reconnect",
        "Another connection does not know what was not stored.",
    ),
    (
        "websocket.lifetime",
        "60-minute limit",
        "A connection that has lasted too long is told so, and closed.",
    ),
    (
        "websocket.error-frame",
        "Error frame",
        "A refused turn is one frame with a status, and a code that is a string.",
    ),
    (
        "websocket.warm-up",
        "generate",
        "A warm-up is a completed response without output, which can be continued.",
    ),
)
