"""Structural tags of whole turns, as a gateway sends them."""

from __future__ import annotations

from typing import Any

from gateway.models.harmony.tokenizer import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START

Form = dict[str, Any]
MARKERS = [RETURN, CONSTRAIN, CHANNEL, START, END, MESSAGE, CALL, 199999, 199998]


def token(one: int) -> Form:
    return {"type": "token", "token": one}


def text(value: str) -> Form:
    return {"type": "const_string", "value": value}


def in_order(*elements: Form) -> Form:
    return {"type": "sequence", "elements": list(elements)}


def one_of(*elements: Form) -> Form:
    return {"type": "or", "elements": list(elements)}


def json_of(schema: Any) -> Form:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1}


def ebnf(grammar: str) -> Form:
    return {"type": "grammar", "grammar": grammar}


def message(channel: str) -> Form:
    body = {"type": "any_tokens", "exclude_tokens": MARKERS}
    head = (token(CHANNEL), text(channel), token(MESSAGE))
    return in_order(*head, body, token(END), token(START), text("assistant"))


def call(name: str, body: Form) -> Form:
    address = f" to=functions.{name}"
    headers = one_of(
        in_order(text(address), token(CHANNEL), text("commentary")),
        in_order(token(CHANNEL), text(f"commentary{address}")),
    )
    marked = in_order(text(" "), token(CONSTRAIN), text("json"))
    mark = {"type": "optional", "content": one_of(marked, text(" json"))}
    return in_order(headers, mark, token(MESSAGE), body)


def answer(body: Form) -> Form:
    marked = in_order(text(" "), token(CONSTRAIN), text("json"))
    mark = {"type": "optional", "content": marked}
    return in_order(token(CHANNEL), text("final"), mark, token(MESSAGE), body)


def turn(*ends: Form, reasoning: bool = True) -> Form:
    """Any messages to oneself and the user, then one of the ends; the stop id is no part of it."""
    before = [message("analysis"), message("commentary")] if reasoning else [message("commentary")]
    form = in_order({"type": "star", "content": one_of(*before)}, one_of(*ends))
    return {"type": "structural_tag", "format": form}
