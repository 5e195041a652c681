from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gateway.engine.output_guard import (
    BACKEND_LOST,
    INVALID_STRUCTURED_OUTPUT,
    INVALID_TOOL_CALL,
    REQUIRED_TOOL_NOT_CALLED,
)
from gateway.entries import Finished, Mark
from gateway.errors import (
    ContextOverflow,
    NoUpstreamAvailable,
    RequestError,
    UpstreamFailed,
    UpstreamRejected,
    UpstreamUnavailable,
)
from gateway.generation import FinishReason
from gateway.limits.accounting import NOTHING_USED, Used

if TYPE_CHECKING:
    from gateway.entries import Step
    from gateway.eventlog.fold.fold import Fold
    from gateway.generation import TokenUsage

SERVER_ERROR: Final = "server_error"
VIOLATIONS: Final = {
    REQUIRED_TOOL_NOT_CALLED: "The model did not call a tool, though tool_choice requires it. Try "
    "again, or tell the model in the instructions when to call which tool.",
    INVALID_TOOL_CALL: "The model made a tool call that the request does not allow, or with "
    "arguments that do not fit the tool's schema. Try again, or simplify the schema.",
    INVALID_STRUCTURED_OUTPUT: "The model's answer does not fit text.format. Try again, with a "
    "simpler schema, or with a larger max_output_tokens.",
    BACKEND_LOST: "The model server was lost in the middle of an output that has to be in a "
    "format, and no other could complete what it had begun. Please try again.",
}
_OUR_FAULT: Final = {BACKEND_LOST}
"""OpenAI's `server_error` to clients: they try again by themselves."""


def now() -> int:
    # Unix seconds, as in the entries of the log.
    return int(time.time())


def marked(step: Step, place: str = "") -> Mark:
    return Mark(step, time.time_ns() // 1_000_000, place)


def ended(finish: FinishReason | None, at: int, *, visible: bool) -> Finished:
    """Return the outcome of a turn that ended without an error; never an empty `completed`."""
    if finish is FinishReason.LENGTH or finish is FinishReason.CUT:
        # A response that was cut would have continued with more room.
        return Finished("incomplete", at, reason="max_output_tokens")
    if finish is FinishReason.FILTERED:
        return Finished("incomplete", at, reason="content_filter")
    if visible:
        return Finished("completed", at)
    return _failed(at, "The model ended its turn without an answer. Please try again.")


def violated(code: str, at: int) -> Finished:
    # The model broke the output rules after all repairs.
    return _failed(at, VIOLATIONS[code], code=SERVER_ERROR if code in _OUR_FAULT else code)


def broken(error: Exception, at: int) -> Finished:
    match error:
        case ContextOverflow():
            return _failed(
                at,
                "Your input exceeds the context window of this model. Please shorten it.",
                code="context_length_exceeded",
            )
        case RequestError():
            return _failed(at, error.message, code=error.code or SERVER_ERROR)
        case UpstreamUnavailable() | NoUpstreamAvailable():
            what = "No server for this model could take the request."
        case UpstreamRejected():
            return _failed(
                at, "The model server refused the request. Sending it again will not help."
            )
        case UpstreamFailed():
            what = "The model server broke off while generating."
        case _:
            what = "The server had an error while processing your request."
    return _failed(at, f"{what} Please try again.")


def cancelled(at: int) -> Finished:
    # By the client, or it disconnected: none of the reasons of OpenAI's `incomplete` is that.
    return Finished("cancelled", at)


def took_too_long(at: int) -> Finished:
    return _failed(
        at, "The response took longer than this server allows. Ask for less output at once."
    )


def shut_down(at: int) -> Finished:
    # The process ends, and its grace period is over.
    return _failed(at, "The server is restarting. Please try again.")


def interrupted(at: int) -> Finished:
    # The process that generated a foreground response ended without recording an end.
    return _failed(at, "The server that generated this response stopped. Please try again.")


def out_of_attempts(at: int) -> Finished:
    # The allowed number of processes generated the response, and all of them stopped.
    return _failed(at, "The servers that generated this response stopped, one after the other.")


def of_another_release(at: int) -> Finished:
    # No process of a release that could continue the response is left.
    return _failed(
        at,
        "The response was begun by a version of this server that does not run any more. "
        "Please try again.",
    )


def not_stored(at: int) -> Finished:
    # The response was generated, but the database did not accept it in time.
    return _failed(at, "The response was generated but could not be stored. Please try again.")


def _failed(at: int, message: str, *, code: str = SERVER_ERROR) -> Finished:
    return Finished("failed", at, code=code, message=message)


def booked(status: str, fold: Fold) -> TokenUsage | None:
    """Return the usage that somebody pays for; None for a failure before any output."""
    is_booked = status != "failed" or fold.has_generated or fold.hosted.results > 0
    return fold.usage if is_booked else None


def used(usage: TokenUsage | None, *, is_whole: bool) -> Used:
    # The charge of a key for a response; `is_whole`: it was answered to its end.
    if usage is None:
        return NOTHING_USED
    return Used(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        tool_calls=usage.tool_calls,
        web_searches=usage.web_searches,
        is_whole=is_whole,
    )
