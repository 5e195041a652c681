"""Parameters of one API that were sent to another, where they would change what the answer is.

Whoever sends them would get another answer than was asked for, and only a header would say so. What
cannot change an answer stays what it is, an ignored parameter; so does `reasoning_effort`, which
Open WebUI sends to every API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.errors import InvalidRequest
from gateway.protocol.numbers import whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    Remedies = Mapping[str, str]

_CONVERSATION: Final = "'messages': a chat has all of its conversation in each request"
_HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "functions": ([],),
    "tools": ([],),
    "function_call": ("auto", "none"),
    "background": (False,),
    "truncation": ("disabled",),
    "instructions": ("",),
    "text": ({}, {"format": {"type": "text"}}),
    "response_format": ({"type": "text"},),
}
"""Values that ask for nothing but what is done without them."""

IN_RESPONSES: Final[Remedies] = {
    "messages": "'input', which takes the same messages",
    "response_format": "'text.format'",
    "max_tokens": "'max_output_tokens'",
    "max_completion_tokens": "'max_output_tokens'",
    "functions": "'tools'",
    "function_call": "'tool_choice'",
    "logprobs": "'include' with 'message.output_text.logprobs', and 'top_logprobs'",
    "n": "one request for each answer",
    "best_of": "one request for each answer",
    "echo": "'input', which you can repeat yourself",
    "suffix": "'instructions' that tell what follows",
    "logit_bias": "'instructions' that tell what to say and what not",
}
"""What stands for parameters of the other APIs in `POST /v1/responses`."""
IN_CHATS: Final[Remedies] = {
    "input": "'messages'",
    "prompt": "'messages'",
    "instructions": "a message of the role 'developer'",
    "max_output_tokens": "'max_completion_tokens'",
    "text": "'response_format' and 'verbosity'",
    "previous_response_id": _CONVERSATION,
    "conversation": _CONVERSATION,
    "context_management": "'messages' that you make shorter yourself",
    "truncation": "'messages' that you make shorter yourself",
    "background": "POST /v1/responses, which has background responses",
    "best_of": "one request for each answer",
    "echo": "'messages', which you can repeat yourself",
    "suffix": "a message that tells what follows",
}
"""The same in `POST /v1/chat/completions`."""
IN_COMPLETIONS: Final[Remedies] = {
    "input": "'prompt'",
    "messages": "'prompt', or POST /v1/chat/completions",
    "instructions": "'prompt'",
    "max_output_tokens": "'max_tokens'",
    "max_completion_tokens": "'max_tokens'",
    "text": "POST /v1/responses",
    "response_format": "POST /v1/chat/completions",
    "tools": "POST /v1/chat/completions",
    "functions": "POST /v1/chat/completions",
    "previous_response_id": "'prompt', which has all of the conversation",
    "conversation": "'prompt', which has all of the conversation",
    "background": "POST /v1/responses, which has background responses",
}
"""The same in `POST /v1/completions`."""


def check_own(document: Mapping[str, Any], remedies: Remedies) -> None:
    """Raises `InvalidRequest` for the first parameter of another API; nulls ask for nothing."""
    for name in document:
        if name in remedies and not is_harmless(name, document[name]):
            raise InvalidRequest(
                f"Unsupported parameter: '{name}' is not a parameter of this API. Use "
                f"{remedies[name]} instead.",
                code="unsupported_parameter",
                param=name,
            )


def is_harmless(name: str, value: object) -> bool:
    """Whether it asks for what is done anyway."""
    return value is None or any(_is_same(value, one) for one in _HARMLESS.get(name, ()))


def _is_same(value: object, other: object) -> bool:
    """`1` is `1.0`, and no `True`."""
    value = whole(value)
    return type(value) is type(other) and value == other
