"""Fields of the Playground's form → the body of a request.

What the API checks is not checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.protocol.admin_bodies import Json
    from gateway.protocol.hosted_tools import HostedFamily

OUTPUT: Final = "output:"
"""Before a call's id: the name of the field with its output."""
APPROVAL: Final = "approval:"
"""Before an approval's id: the name of the field with the answer."""
HOSTED: Final[dict[HostedFamily, Json]] = {
    "web_search": {"type": "web_search"},
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
}
"""With a box in the form."""
SHOWN: Final[dict[HostedFamily, str]] = {
    "web_search": "web_search_call.action.sources",
    "code_interpreter": "code_interpreter_call.outputs",
}
"""Values of `include`."""
SCHEMA_NAME: Final = "answer"
DIGITS_MAX: Final = 15
"""All such numbers can be written as JSON."""
TEXTS: Final = ("model", "instructions", "service_tier")
"""Parameters as they stand."""


def input_of(form: Mapping[str, str]) -> list[Json]:
    items: list[Json] = [
        {"type": "function_call_output", "call_id": name.removeprefix(OUTPUT), "output": value}
        for name, value in form.items()
        if name.startswith(OUTPUT)
    ]
    items += [
        {
            "type": "mcp_approval_response",
            "approval_request_id": name.removeprefix(APPROVAL),
            "approve": value == "approve",
        }
        for name, value in form.items()
        if name.startswith(APPROVAL) and value in {"approve", "refuse"}
    ]
    if question := form.get("question", ""):
        items.append({"role": "user", "content": question})
    if not items:
        raise InvalidRequest("There is no question. Write one, and send it.", param="question")
    return items


def number(text: str, param: str, refusal: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise InvalidRequest(refusal, param=param)
    return int(text)


def body_of(form: Mapping[str, str], context: Mapping[str, Any], items: Sequence[Json]) -> Json:
    """Return the request; `context` has parameters to continue something with."""
    body: Json = {name: form[name] for name in TEXTS if form.get(name)}
    if effort := form.get("effort"):
        body["reasoning"] = {"effort": effort}
    if most := form.get("max_output_tokens"):
        body["max_output_tokens"] = number(most, "max_output_tokens", "'Max tokens' is no number.")
    if (schema := _json(form, "schema")) is not None:
        form_of_answer = {"type": "json_schema", "name": SCHEMA_NAME, "strict": True}
        body["text"] = {"format": {**form_of_answer, "schema": schema}}
    if tools := list(_tools(form)):
        body["tools"] = tools
    if include := [field for family, field in SHOWN.items() if form.get(family)]:
        body["include"] = include
    return {**body, **context, "input": list(items)}


def _tools(form: Mapping[str, str]) -> Iterator[Json]:
    yield from (tool for family, tool in HOSTED.items() if form.get(family))
    more = _json(form, "tools")
    if more is not None:
        yield from more if isinstance(more, list) else [more]


def _json(form: Mapping[str, str], name: str) -> Any:
    # None: the field is empty.
    if not (text := form.get(name, "")):
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"'{name}' is no JSON: {error}. Correct it, or leave it empty.", param=name
        ) from None
    if not isinstance(value, dict | list):
        raise InvalidRequest(f"'{name}' is no object. Begin it with '{{'.", param=name)
    return value
