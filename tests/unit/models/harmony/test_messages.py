from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.models.harmony.messages import harmony_message, recipient
from gateway.models.harmony.reference import library_message
from gateway.models.harmony.rendering import Renderer
from gateway.protocol.calls import FILE_NOTE, IMAGE_NOTE
from gateway.protocol.items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FileOperation,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    LocalShellAction,
    LocalShellCall,
    LocalShellCallOutput,
    McpCall,
    McpListTools,
    Message,
    OutputText,
    Phase,
    Reasoning,
    ReasoningText,
    Refusal,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ShellOutcome,
    ShellOutput,
    SummaryText,
)
from tests.fakes.contexts import context_item
from tests.fakes.harmony_oracle import encoding, spelled, vocabulary


def rendered(item: Item, function: str | None = None) -> str:
    return spelled(Renderer(vocabulary()).render_item(context_item(item), function))


def message(role: str, *parts: object, phase: Phase | None = None) -> Message:
    return Message.model_validate({"role": role, "content": parts, "phase": phase})


ONE_MESSAGE = [
    (
        McpCall(server_label="s", name="t", arguments="{}", output="done"),
        "<|start|>functions.mcp.s.t to=assistant<|channel|>commentary<|message|>"
        '{"arguments":"{}","output":"done"}<|end|>',
    ),
    (message("user", InputText(text="hi")), "<|start|>user<|message|>hi<|end|>"),
    (message("user"), "<|start|>user<|message|><|end|>"),
    (
        message("user", InputText(text="a"), InputText(text="b")),
        "<|start|>user<|message|>a\nb<|end|>",
    ),
    (
        message("user", InputText(text="see"), InputImage(image_url="http://x"), InputFile()),
        f"<|start|>user<|message|>see\n{IMAGE_NOTE}\n{FILE_NOTE}<|end|>",
    ),
    (
        message("system", InputText(text="B")),
        "<|start|>developer<|message|># Instructions\n\nB<|end|>",
    ),
    (
        message("developer", InputText(text="C")),
        "<|start|>developer<|message|># Instructions\n\nC<|end|>",
    ),
    (
        message("assistant", OutputText(text="x"), phase="commentary"),
        "<|start|>assistant<|channel|>commentary<|message|>x<|end|>",
    ),
    (
        message("assistant", OutputText(text="x"), OutputText(text="y"), phase="final_answer"),
        "<|start|>assistant<|channel|>final<|message|>xy<|end|>",
    ),
    (
        message("assistant", InputText(text="x")),
        "<|start|>assistant<|channel|>final<|message|>x<|end|>",
    ),
    (
        message("assistant", Refusal(refusal="no")),
        "<|start|>assistant<|channel|>final<|message|>no<|end|>",
    ),
    (
        Reasoning(content=(ReasoningText(text="h"), ReasoningText(text="m"))),
        "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>",
    ),
    (
        Reasoning(summary=(SummaryText(text="s"), SummaryText(text="t"))),
        "<|start|>assistant<|channel|>analysis<|message|>s\nt<|end|>",
    ),
    (
        FunctionCall(call_id="c", name="get_weather", arguments='{"a":1}'),
        "<|start|>assistant to=functions.get_weather<|channel|>commentary <|constrain|>json"
        '<|message|>{"a":1}<|call|>',
    ),
    (
        FunctionCall(call_id="c", name="click", namespace="computer", arguments="{}"),
        "<|start|>assistant to=functions.computer.click<|channel|>commentary <|constrain|>json"
        "<|message|>{}<|call|>",
    ),
    (
        CustomToolCall(call_id="c", name="apply_patch", input='*** "é"\n<|call|>'),
        "<|start|>assistant to=functions.apply_patch<|channel|>commentary <|constrain|>json"
        '<|message|>{"input":"*** \\"é\\"\\n<|call|>"}<|call|>',
    ),
    (
        LocalShellCall(call_id="c", action=LocalShellAction(command=("ls", "-l"))),
        "<|start|>assistant to=functions.local_shell<|channel|>commentary <|constrain|>json"
        '<|message|>{"command":["ls","-l"]}<|call|>',
    ),
    (
        ShellCall(call_id="c", action=ShellAction(commands=("ls",), timeout_ms=5)),
        "<|start|>assistant to=functions.shell<|channel|>commentary <|constrain|>json"
        '<|message|>{"commands":["ls"],"timeout_ms":5}<|call|>',
    ),
    (
        ApplyPatchCall(call_id="c", operation=FileOperation(type="delete_file", path="a")),
        "<|start|>assistant to=functions.apply_patch<|channel|>commentary <|constrain|>json"
        '<|message|>{"operation":{"type":"delete_file","path":"a"}}<|call|>',
    ),
]


@pytest.mark.parametrize(("item", "text"), ONE_MESSAGE)
def test_an_item_is_one_message(item: Item, text: str) -> None:
    assert rendered(item) == text


@pytest.mark.parametrize(("item", "text"), ONE_MESSAGE)
def test_openai_harmony_gives_the_message_the_same_ids(item: Item, text: str) -> None:
    ids = list(Renderer(vocabulary()).render_item(context_item(item)))
    message = harmony_message(item)
    assert message is not None
    assert ids == encoding().render(library_message(message))


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("ok", "ok"),
        ("", ""),
        ((InputText(text="x"), InputImage(image_url="data:")), f"x\n{IMAGE_NOTE}"),
        ((), ""),
    ],
)
def test_an_output_comes_from_its_function(
    output: str | tuple[InputText | InputImage, ...], text: str
) -> None:
    item = FunctionCallOutput(call_id="c", output=output)
    header = "<|start|>functions.math.sum to=assistant<|channel|>commentary<|message|>"
    assert rendered(item, "math.sum") == f"{header}{text}<|end|>"


SAID_BY_TOOLS: list[tuple[Item, str]] = [
    (CustomToolCallOutput(call_id="c", output="done"), "done"),
    (LocalShellCallOutput(call_id="c", output="a.txt"), "a.txt"),
    (
        ShellCallOutput(
            call_id="c",
            output=(
                ShellOutput(stdout="a", stderr="", outcome=ShellOutcome(type="exit", exit_code=0)),
            ),
        ),
        '[{"stdout":"a","stderr":"","outcome":{"type":"exit","exit_code":0}}]',
    ),
    (
        ApplyPatchCallOutput(call_id="c", status="failed", output="no such file"),
        '{"status":"failed","output":"no such file"}',
    ),
]


@pytest.mark.parametrize(("item", "text"), SAID_BY_TOOLS)
def test_an_output_of_any_kind_comes_from_the_function_that_was_called(
    item: Item, text: str
) -> None:
    header = "<|start|>functions.tool to=assistant<|channel|>commentary<|message|>"
    assert rendered(item, "tool") == f"{header}{text}<|end|>"


@pytest.mark.parametrize(
    "item",
    [
        Reasoning(),
        Reasoning(content=()),
        Reasoning(content=(ReasoningText(text=""),)),
        message("assistant"),
        message("assistant", OutputText(text="")),
        message("developer", InputText(text="")),
    ],
)
def test_an_item_that_says_nothing_has_no_ids(item: Item) -> None:
    assert rendered(item) == ""


@pytest.mark.parametrize("name", ["f", "get-weather", "a.b_c", "x" * 128])
def test_function_names_become_recipients(name: str) -> None:
    assert recipient(name) == f"functions.{name}"


@pytest.mark.parametrize(
    "name",
    ["", "x" * 129, "f to=system", "f\n", "f<|channel|>analysis", "naïve", "a/b", "f\u200b"],
)
def test_no_other_name_reaches_a_header(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        harmony_message(FunctionCall(call_id="c", name=name, arguments="{}"))
    assert caught.value.param == "input"
    with pytest.raises(InvalidRequest):
        harmony_message(FunctionCallOutput(call_id="c", output="ok"), name)
    with pytest.raises(InvalidRequest):
        harmony_message(CustomToolCall(call_id="c", name=name, input=""))


@pytest.mark.parametrize("namespace", ["f to=system", "f\n", "é", "n" * 128])
def test_no_other_namespace_reaches_a_header(namespace: str) -> None:
    call = FunctionCall(call_id="c", name="f", namespace=namespace, arguments="{}")
    with pytest.raises(InvalidRequest):
        harmony_message(call)


def test_a_list_of_tools_that_cannot_be_called_says_nothing() -> None:
    assert rendered(McpListTools()) == ""
