"""A `ChatFormat` of the toy model, and a server's answers to what it asks."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson

from gateway.models.chat.chat_format import ChatFormat
from gateway.models.format import FormatOptions, Unrendered
from tests.fakes.chat_server import Refused, chatml, toy_tokenizer, write_model
from tests.fakes.contexts import options as plain_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.generation import Prompt
    from gateway.models.format import Rendering
    from gateway.protocol.context_item import ContextItem


def loaded(**options: Any) -> ChatFormat:
    """The format of the toy model, read from its files."""
    with TemporaryDirectory() as folder:
        path = str(write_model(Path(folder)))
        known = {"reasoning": "think", "calls": "hermes", **options}
        return ChatFormat.load(FormatOptions("toy", path, **known))


@cache
def tokenizer() -> Any:
    return toy_tokenizer()


def ids_of(text: str) -> list[int]:
    """What its server makes of a text, markers spelled."""
    ids: list[int] = tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def spelled(ids: Sequence[int]) -> str:
    return str(tokenizer().decode(list(ids), skip_special_tokens=False))


def answer(question: bytes, template: Callable[[dict[str, Any]], str] = chatml) -> Rendering:
    """A server's answer to one question."""
    body = orjson.loads(question)
    if "prompt" in body:
        return array("I", ids_of(body["prompt"]))
    try:
        return array("I", ids_of(template(body)))
    except Refused as error:
        return str(error)


def rendered(
    format_: ChatFormat,
    items: Sequence[ContextItem],
    template: Callable[[dict[str, Any]], str] = chatml,
    **fields: Any,
) -> Prompt:
    """A prompt, after all questions about it were answered."""
    answers: dict[bytes, Rendering] = {}
    while True:
        try:
            return format_.render(items, replace(plain_options(), rendered=answers, **fields))
        except Unrendered as lacking:
            answers |= {one: answer(one, template) for one in lacking.questions}
