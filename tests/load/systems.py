"""The ways to the tokens that are compared, and how each is asked for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import orjson

from tests.load.tape import MODEL, PROMPT_IDS

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["completions", "chat", "responses"]
Program = Literal["backend", "nginx", "gateway", "sglang-router", "litellm"]
SLOW_SHARE: Final = 0.2
PROMPT: Final = "hi there, please tell me something about the sea"
PATHS: Final[Mapping[Kind, str]] = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
}
_LENGTH_KEYS: Final[Mapping[Kind, str]] = {
    "completions": "max_tokens",
    "chat": "max_tokens",
    "responses": "max_output_tokens",
}


@dataclass(frozen=True, slots=True)
class System:
    """One way: a program, and the requests it is sent. A peer's failure does not void a run.

    `share` of the requests are enough for one that is many times slower.
    """

    name: str
    program: Program
    kind: Kind
    is_peer: bool = False
    share: float = 1.0
    model: str = MODEL
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return PATHS[self.kind]

    def body(self, tokens: int, *, streamed: bool = True) -> bytes:
        """A request for exactly `tokens` ids, those that frame the words among them."""
        body: dict[str, object] = {
            "model": self.model,
            "stream": streamed,
            _LENGTH_KEYS[self.kind]: tokens,
            **self.extra,
        }
        if self.kind == "completions":
            body |= {"prompt": list(PROMPT_IDS), "return_token_ids": True}
            if streamed:
                body["stream_options"] = {"include_usage": True}
        elif self.kind == "chat":
            body["messages"] = [{"role": "user", "content": PROMPT}]
        else:
            body["input"] = PROMPT
        return orjson.dumps(body)


BACKEND: Final = "backend"
NGINX: Final = "nginx"
FOREGROUND: Final = "foreground"
STORED: Final = "stored"
BACKGROUND: Final = "background"
SYSTEMS: Final = {
    system.name: system
    for system in (
        System(BACKEND, "backend", "completions"),
        System(NGINX, "nginx", "completions"),
        System(FOREGROUND, "gateway", "responses", extra={"store": False}),
        System(STORED, "gateway", "responses", extra={"store": True}),
        System(BACKGROUND, "gateway", "responses", extra={"store": True, "background": True}),
        System("sglang-router", "sglang-router", "chat", is_peer=True),
        System(
            "litellm-responses",
            "litellm",
            "responses",
            is_peer=True,
            share=SLOW_SHARE,
            extra={"store": False},
        ),
        System("litellm-chat", "litellm", "chat", is_peer=True, share=SLOW_SHARE),
    )
}
"""By name, in the order of the tables."""
EXPLANATIONS: Final = f"""\
{BACKEND}            the backend itself: what the load and the backend need of the time
{NGINX}              its bytes passed through, nothing parsed
{FOREGROUND}         the gateway, store: false
{STORED}             the gateway, store: true: the response is kept in PostgreSQL
{BACKGROUND}         the gateway, background: true: every token is in the durable log, too
sglang-router      SGLang's router, Chat Completions passed through
litellm-responses  LiteLLM's proxy, Responses to Responses
litellm-chat       LiteLLM's proxy, Chat Completions to Chat Completions"""
