from __future__ import annotations

from typing import Annotated, Literal

from gateway.protocol import documented
from gateway.protocol.create import PARAMETERS


def test_literals_are_found_wherever_they_are_nested() -> None:
    annotation = Annotated[Literal["a", "b"] | list[Literal["c"]] | None, 1]
    assert documented.literal_values(annotation) == ("a", "b", "c")


def test_the_names_are_those_of_openais_sdk() -> None:
    assert {"message", "function_call", "mcp_call", "program"} <= set(documented.ITEM_TYPES)
    assert {"function", "namespace", "web_search_2025_08_26"} <= set(documented.TOOL_TYPES)
    assert {"function", "allowed_tools", "shell"} <= set(documented.TOOL_CHOICE_TYPES)
    assert documented.EFFORTS == ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def test_every_documented_parameter_is_known_or_named_as_without_effect() -> None:
    without_effect = documented.CREATE_PARAMETERS - PARAMETERS
    assert without_effect == {"image", "access_programs"}


def test_few_parameters_are_added_to_openais() -> None:
    added = PARAMETERS - documented.CREATE_PARAMETERS
    assert added == {"presence_penalty", "frequency_penalty", "seed", "stop", "top_k", "min_p"}
