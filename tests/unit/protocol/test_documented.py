"""What is written down as documented is what OpenAI's SDK says, name by name, in its order."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_type_hints

import pytest
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import (
    ResponseIncludable,
    input_token_count_params,
    response_compact_params,
    response_create_params,
)
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.service_tier import ServiceTier
from openai.types.responses.tool_param import ToolParam
from openai.types.shared import ReasoningEffort

from gateway.protocol import documented
from gateway.protocol.documented import literal_values
from gateway.protocol.responses.create_request import PARAMETERS


def type_tags(union: object) -> tuple[str, ...]:
    """The values of `type` in a union of typed dicts or models."""
    tags: list[str] = []
    for member in get_args(union):
        hints: dict[str, Any] = get_type_hints(member) if isinstance(member, type) else {}
        tags += literal_values(hints.get("type"))
    return tuple(dict.fromkeys(tags))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (documented.Effort, ReasoningEffort),
        (documented.Includable, ResponseIncludable),
        (documented.ServiceTier, ServiceTier),
    ],
)
def test_literals_have_the_values_of_the_sdk_in_its_order(written: object, said: object) -> None:
    assert literal_values(written) == literal_values(said)


@pytest.mark.parametrize(
    ("written", "union"),
    [
        (documented.ITEM_TYPES, ResponseInputItemParam),
        (documented.TOOL_CHOICE_TYPES, response_create_params.ToolChoice),
        (documented.TOOL_TYPES, ToolParam),
    ],
)
def test_types_are_those_of_the_sdk_in_its_order(written: tuple[str, ...], union: object) -> None:
    assert written == type_tags(union)


@pytest.mark.parametrize(
    ("written", "params", "more"),
    [
        (
            documented.CREATE_PARAMETERS,
            response_create_params.ResponseCreateParamsBase,
            {"stream", *documented.NEWER_PARAMETERS},
        ),
        (documented.COUNT_PARAMETERS, input_token_count_params.InputTokenCountParams, set()),
        (documented.COMPACT_PARAMETERS, response_compact_params.ResponseCompactParams, set()),
        (documented.CHAT_PARAMETERS, chat_params.CompletionCreateParamsBase, {"stream"}),
    ],
)
def test_parameters_are_those_of_the_sdk(
    written: frozenset[str], params: type, more: set[str]
) -> None:
    assert written == set(get_type_hints(params)) | more


def test_literals_are_found_wherever_they_are_nested() -> None:
    annotation = Annotated[Literal["a", "b"] | list[Literal["c"]] | None, 1]
    assert documented.literal_values(annotation) == ("a", "b", "c")


def test_every_documented_parameter_is_known_or_named_as_without_effect() -> None:
    without_effect = documented.CREATE_PARAMETERS - PARAMETERS
    assert without_effect == {"image", "access_programs", "background_options"}


def test_few_parameters_are_added_to_openais() -> None:
    added = PARAMETERS - documented.CREATE_PARAMETERS
    assert added == {
        *("presence_penalty", "frequency_penalty", "seed", "stop", "top_k", "min_p"),
        "enable_response_messages",
    }
