"""`POST /v1/completions`: a prompt is the message of a user, and the completion its answer.

gpt-oss was trained on conversations only, so there is no text for it to go on with: what would
need that (`suffix`, `echo`, a prompt of token ids) is refused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.protocol.base import without_nulls
from gateway.protocol.chat.adapters import CompletionAdapter
from gateway.protocol.chat.models import CompletionRequest
from gateway.protocol.chat.to_responses import SHARED, Converted, Places, converted, shared
from gateway.protocol.documented import IN_COMPLETIONS, check_own
from gateway.protocol.json_body import parse_object
from gateway.protocol.refusals import (
    array_empty,
    missing,
    string_empty,
    unknown,
    unsupported,
    wrong_type,
)
from gateway.protocol.responses.requests import checked, presentable
from gateway.protocol.validation import validated

if TYPE_CHECKING:
    from gateway.protocol.limits import InputLimits


COMPLETION_PARAMETERS: Final = frozenset(CompletionRequest.model_fields) | SHARED


def parse_completion(body: bytes, *, limits: InputLimits, strict: bool = False) -> Converted:
    """The request that `body` spells, as one of the Responses API.

    Raises `InvalidRequest` with OpenAI's message, code and param, and nothing else for any bytes.
    """
    document = without_nulls(parse_object(body, limits))
    if "model" not in document:
        raise missing("model")
    check_own(document, IN_COMPLETIONS)
    if "prompt" not in document:
        raise missing("prompt")
    ignored = tuple(name for name in document if name not in COMPLETION_PARAMETERS)
    if strict and ignored:
        raise unknown(ignored[0])
    request = validated(CompletionRequest, document)
    _check_served(request)
    text = _prompt(request.prompt)
    options = request.stream_options
    asked = {
        "input": [{"type": "message", "role": "user", "content": text}],
        "max_output_tokens": request.max_tokens,
        "reasoning": request.reasoning_effort and {"effort": request.reasoning_effort},
        "stream_options": options and {"include_obfuscation": options.include_obfuscation},
    }
    return converted(
        {**shared(document), **without_nulls(asked)},
        Places(
            {
                "input": "prompt",
                "input[0].content[0].text": "prompt",
                "max_output_tokens": "max_tokens",
                "reasoning.effort": "reasoning_effort",
            }
        ),
        CompletionAdapter(include_usage=bool(options and options.include_usage)),
        check=partial(checked, limits=limits, strict=strict),
        ignored=presentable(ignored),
    )


def _prompt(prompt: object) -> str:
    """One text, alone or in an array."""
    match prompt:
        case str() if prompt:
            return prompt
        case str():
            raise string_empty("prompt")
        case []:
            raise array_empty("prompt")
        case [str(text)] if text:
            return text
        case [str(), *_]:
            raise unsupported("prompt", "Send one text, and a request for each.")
        case [int() | list(), *_]:
            raise unsupported("prompt", "Send the text of the prompt, not its token ids.")
        case _:
            raise wrong_type("prompt", "one of a string or array with one string", prompt)


def _check_served(request: CompletionRequest) -> None:
    """Raises `InvalidRequest` for what a model of conversations cannot do."""
    for name in ("n", "best_of"):
        if (getattr(request, name) or 1) > 1:
            raise unsupported(name, "Send the request as often as you want answers.")
    if request.echo:
        raise unsupported("echo", "Put the prompt before the answer yourself.")
    if request.suffix:
        raise unsupported("suffix", "Tell the model in the prompt what follows.")
    if request.logprobs is not None:
        raise unsupported("logprobs", "Send the prompt to /v1/chat/completions, which tells them.")
    if request.logit_bias:
        raise unsupported("logit_bias", "Tell the model in the prompt what to say and what not.")
