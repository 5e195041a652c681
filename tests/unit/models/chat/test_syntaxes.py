"""Each way to write calls: what is right, and what is made of what is not."""

from __future__ import annotations

import pytest

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.generation import FinishReason, SegmentKind
from gateway.models.chat.call_syntax import Left, Mark
from gateway.models.chat.families import CALLS
from gateway.models.chat.syntax.deepseek import full_width
from gateway.models.chat.syntax.llama3_json import LLAMA3_JSON
from tests.fakes.cases import each
from tests.fakes.chat_turns import Model

HERMES = Model("hermes")
CODER = Model("qwen3_coder", "none", ("<function=", "<parameter=", "</parameter>", "</function>"))
GLM = Model("glm")
V3 = Model("deepseek_v3")
V31 = Model("deepseek_v31")
MISTRAL = Model("mistral", "mistral")
LIST = Model("mistral_v3", "none")
LLAMA = Model("llama3_json", "none")
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH

F = '{"name": "f", "arguments": '


def deepseek(text: str) -> str:
    """Markers by their names in ASCII."""
    for name in ("calls_begin", "calls_end", "call_begin", "call_end", "sep"):
        text = text.replace(f"<{name}>", full_width(f"tool_{name}"))
    return text


def check(
    model: Model, text: str, said: list[str], rules: set[str], finish: FinishReason | None = STOP
) -> None:
    """Read id by id, and with its markers spelled in letters, where that is no other text."""
    assert model.read(text, finish) == (said, dict.fromkeys(rules, 1))
    letters = Model(model.calls, model.reasoning, model.syntax.markers)
    assert letters.read(text, finish)[0] == said


@each(
    ("text", "said", "rules"),
    [
        (f'<tool_call>{F}{{"a": 1}}}}</tool_call>', ['f({"a": 1})'], set()),
        ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', ['f({"a": 1})'], set()),
        ('<tool_call>{"id": 5, "name": "f", "parameters": []}</tool_call>', ["f([])"], set()),
        ('<tool_call>{"name": "f", "args": {"a": 1}}</tool_call>', ['f({"a": 1})'], set()),
        ('<tool_call>{"function=f", "arguments": {"a": 1}}</tool_call>', ['f({"a": 1})'],
         {"sloppy_json"}),
        ('<tool_call>{"arguments": {"a": 1}, "function=f"}</tool_call>', ['f({"a": 1})'],
         {"sloppy_json"}),
        ('<tool_call>{"type": 1, "function": {"name": "f", "arguments": {"a": 1}}}</tool_call>',
         ['f({"a": 1})'], {"sloppy_json"}),
        ('<tool_call>{"function": {"arguments": "{}", "name": "f"}, "id": 1} x</tool_call>',
         ["f({})"], {"sloppy_json", "call_leftover", "quoted_arguments"}),
        ('<tool_call>{{"name": "f", "arguments": {"a": 1}}}</tool_call>', ['f({"a": 1})'],
         {"sloppy_json"}),
        ('<tool_call>{{{"name": "f"}}}</tool_call>', ['final: {{{"name": "f"}}}'], {"not_a_call"}),
        ('<tool_call>{"function": {"x": {"name": "f"}}}</tool_call>',
         ['final: {"function": {"x": {"name": "f"}}}'], {"not_a_call"}),
        ('<tool_call>{"function=f": 1}</tool_call>', ['final: {"function=f": 1}'], {"not_a_call"}),
        ('<tool_call>{"name": "f"}</tool_call>', ["f({})"], {"empty_arguments"}),
        (f"<tool_call>{F}null}}</tool_call>", ["f({})"], {"empty_arguments"}),
        (f"<tool_call>{F}null</tool_call>", ["f({})"], {"empty_arguments", "unclosed_json"}),
        (f"<tool_call>{F}7}}</tool_call>", ["f(7)"], {"invalid_arguments"}),
        (f'<tool_call>{F}"{{}}"}}</tool_call>', ["f({})"], {"quoted_arguments"}),
        (f'<tool_call>{F}"a\\"\\u00"}}</tool_call>', ['f("a\\"\\u00")'], {"invalid_arguments"}),
        (f'<tool_call>{F}{{"a": "x\n\ty\x00\\n"}}}}</tool_call>',
         ['f({"a": "x\\n\\ty\\u0000\\n"})'], {"control_character"}),
        (f'<tool_call>{F}{{\n\t"a\r": 1}}}}</tool_call>', ['f({\n\t"a\\r": 1})'],
         {"control_character"}),
        (f'<tool_call>{F}{{"a": "\\\n"}}}}</tool_call>', ['f({"a": "\\\n"})'],
         {"invalid_arguments"}),
        (f'<tool_call>{F}{{"a": "\n", b}}}}</tool_call>', ['f({"a": "\\n", b})'],
         {"control_character", "invalid_arguments"}),
        (f'<tool_call>{F}"{{\\"a\\":\\n\\"\\n\\"}}"}}</tool_call>', ['f({"a":\n"\\n"})'],
         {"quoted_arguments", "control_character"}),
        (f'<tool_call>{F}{{"a": NaN}}}}</tool_call>', ['f({"a": NaN})'], {"invalid_arguments"}),
        (f"<tool_call>{F}[-Infinity]}}</tool_call>", ["f([-Infinity])"], {"invalid_arguments"}),
        (f"<tool_call>{F}{{1}}}}</tool_call>", ["f({1})"], {"invalid_arguments"}),
        (f"<tool_call>{F}{'[' * 200}{']' * 200}}}</tool_call>",
         [f"f({'[' * 200}{']' * 200})"], {"invalid_arguments"}),
        (f"<tool_call>{F}{{}}</tool_call>", ["f({})"], {"unclosed_json"}),
        (f"<tool_call>{F}{{}}]x</tool_call>", ["f({})"], {"call_leftover"}),
        (f"<tool_call>{F}{{}}}} x</tool_call>", ["f({})"], {"call_leftover"}),
        ('<tool_call>{"name": "f",, "arguments": {}}</tool_call>', ["f({})"], {"sloppy_json"}),
        ('<tool_call>{"name": "f", "arguments": {},}</tool_call>', ["f({})"], {"sloppy_json"}),
        ('<tool_call>{"name": " f", "arguments": {}}</tool_call>', ["f({})"], {"sloppy_json"}),
        ('<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>',
         ["f({})"], {"sloppy_json"}),
        ('<tool_call>{"name": "f", arguments: {}}</tool_call>',
         ["f(arguments: {}})"], {"invalid_arguments"}),
        ('<tool_call>{"name": "f", "arguments": }</tool_call>', ["f(})"], {"invalid_arguments"}),
        ('<tool_call>{"name": 5, "arguments": {}}</tool_call>',
         ['final: {"name": 5, "arguments": {}}'], {"not_a_call"}),
        ('<tool_call>{"name": "a b", "arguments": {}}</tool_call>',
         ['final: {"name": "a b", "arguments": {}}'], {"not_a_call"}),
        ("<tool_call>f</tool_call>", ["final: f"], {"not_a_call"}),
        ("<tool_call>\n</tool_call>", [], {"abandoned_call", "no_visible_output"}),
        (f"<tool_call>{F}{{}}}}<tool_call>{F}[]}}</tool_call>",
         ["f({})", "f([])"], {"unclosed_call"}),
        (f'<tool_call>{F}{{}}}}\n{{"name": "g", "arguments": {{}}}}\n</tool_call>',
         ["f({})", "g({})"], {"sloppy_json"}),
        (f'<tool_call>{F}{{}}}} ,\n{{"name": "g", "arguments": {{"a": 1}}}}</tool_call> Hi',
         ["f({})", 'g({"a": 1})', "final: Hi"], {"sloppy_json"}),
        (f'<tool_call>{F}{{}}}}{{"x": 1}}</tool_call>', ["f({})", 'final: {"x": 1}'],
         {"sloppy_json", "not_a_call"}),
        (f'<tool_call>{F}{{}}}}{{"name": "g", "arguments": {{</tool_call>',
         ["f({})", "g({) broken"], {"sloppy_json", "invalid_arguments"}),
        (f'<tool_call>{F}{{}}}}x{{"name": "g", "arguments": {{}}}}</tool_call>',
         ["f({})"], {"call_leftover"}),
        (f"<tool_call>{F}{{}}}},</tool_call>", ["f({})"], {"call_leftover"}),
        ('<tool_call>{"name": "browser.search", "arguments": {}}\n{',
         ["builtin:browser.search({})"], {"sloppy_json"}),
        (f"<tool_call>{F}{{}}}}", ["f({})"], {"unclosed_call"}),
        (f'<tool_call>{F}{{"a": ', ['f({"a": ) broken'], {"unclosed_call", "invalid_arguments"}),
        ('<tool_call>{"name": "functions.f", "arguments": {}}</tool_call>',
         ["f({})"], {"recipient_normalised"}),
        ('<tool_call>{"name": "functions.browser.search", "arguments": {}}</tool_call>',
         ["builtin:browser.search({})"], {"recipient_normalised"}),
        ("<tool_call>{\"name\": \"'f'\", \"arguments\": {}}</tool_call>",
         ["f({})"], {"recipient_normalised"}),
        ("<tool_call>{\"name\": \"`h`\", \"arguments\": {}}</tool_call>",
         ["h({})"], {"undeclared_function"}),
        ('<tool_call>{"name": "h", "arguments": {}}</tool_call>',
         ["h({})"], {"undeclared_function"}),
    ],
)  # fmt: skip
def test_hermes(text: str, said: list[str], rules: set[str]) -> None:
    check(HERMES, text, said, rules)


@each(
    ("text", "said", "rules"),
    [
        (f'{F}{{"a": 1}}}}', ['f({"a": 1})'], {"odd_frame"}),
        (f'<think>a</think>\n\n{F}{{"a": 1}}}}<|im_end|>', ["reasoning: a", 'f({"a": 1})'],
         {"odd_frame"}),
        ('{"arguments": {"a": 1}, "name": "f"}', ['f({"a": 1})'], {"odd_frame"}),
        (f'```json\n{F}{{"a": "```"}}}}\n```', ['f({"a": "```"})'], {"odd_frame"}),
        (f"```\n{F}{{}}}}\n```\n\nHi ```", ["f({})", "final: Hi ```"], {"odd_frame"}),
        (f"```json\n{F}{{}}}}\n{F}[]}}\n```", ["f({})", "f([])"], {"odd_frame", "sloppy_json"}),
        (f"```json\n{F}{{}}}}\n```\n```py\n1```", ["f({})", "final: ```py\n1```"], {"odd_frame"}),
        (f"{F}{{}}}}\n</tool_call>", ["f({})"], {"odd_frame"}),
        (f"{F}{{}}}}\n<tool_call>\n{F}[]}}</tool_call>Hi", ["f({})", "f([])", "final: Hi"],
         {"odd_frame"}),
        (f"{F}{{<tool_call>{F}[]}}</tool_call>", ["f({) broken", "f([])"],
         {"odd_frame", "invalid_arguments"}),
        (f"```json\n<tool_call>\n{F}[]}}</tool_call>\n```",
         ["final: ```json", "f([])", "final: ```"], {"not_a_call"}),
        (f'{{"x": 1, <tool_call>{F}[]}}</tool_call>', ['final: {"x": 1,', "f([])"], set()),
        ('{"name"</tool_call>Hi', ['final: {"name"', "final: Hi"], {"not_a_call"}),
        ('{"name": "browser.search", "arguments": {}};', ["builtin:browser.search({})"],
         {"odd_frame", "after_turn_end"}),
        ('{"name": "h", "arguments": {}}', ['final: {"name": "h", "arguments": {}}'], set()),
        ('{"arguments": {}, "name": "h"}', ['final: {"arguments": {}, "name": "h"}'], set()),
        ('```json\n{"name": "f"}\n```', ['final: ```json\n{"name": "f"}\n```'], set()),
        ('{"name": "f", "age": 3}', ['final: {"name": "f", "age": 3}'], set()),
        ("{} Hi", ["final: {} Hi"], set()),
        ("```python\nprint({1})\n```", ["final: ```python\nprint({1})\n```"], set()),
        ("``{}", ["final: ``{}"], set()),
        ("````json\n{", ["final: ````json\n{"], set()),
        ("```json\n", ["final: ```json\n"], set()),
        (f"So: {F}{{}}}}", [f"final: So: {F}{{}}}}"], set()),
    ],
)  # fmt: skip
def test_hermes_without_its_markers(text: str, said: list[str], rules: set[str]) -> None:
    check(HERMES, text, said, rules)


@each(
    ("text", "said", "rules"),
    [
        (f'<tool_call>{F}{{"a": 1', ['f({"a": 1) cut'], {"unclosed_call"}),
        (f'<tool_call>{F}"{{', ["f() cut"], {"unclosed_call"}),
        ('<tool_call>{"name": "f", "argu', ["f() cut"], {"unclosed_call"}),
        ('<tool_call>{"name": "f"', ["f() cut"], {"unclosed_call"}),
        ('<tool_call>{"name": "f"}', ["f({})"], {"empty_arguments", "unclosed_call"}),
        (f"<tool_call>{F}{{}}", ["f({})"], {"unclosed_json", "unclosed_call"}),
        ('<tool_call>{"na', [], {"abandoned_call", "no_visible_output"}),
        ('<tool_call>{"arguments": {"a": 1', [], {"abandoned_call", "no_visible_output"}),
    ],
)
def test_hermes_that_is_cut_off(text: str, said: list[str], rules: set[str]) -> None:
    check(HERMES, text, said, rules, LENGTH)


CALL = "<tool_call>\n<function=f>\n"
END = "</function>\n</tool_call>"


@each(
    ("text", "said", "rules"),
    [
        ('<tool_call>\n<function=f>\n{"text": "</function>"}\n</function>\n</tool_call>',
         ['f({"text": "</function>"})'], {"odd_frame"}),
        ('<function=f>{"count": 1}</function> Hi', ['f({"count": 1})', "final: Hi"],
         {"odd_frame"}),
        ('<tool_call><function=f>{} x<parameter=a></function></tool_call>', ["f({})"],
         {"odd_frame", "call_leftover", "marker_in_body"}),
        ('<tool_call><function=f>{"a": </function></tool_call>', ['f({"a": ) broken'],
         {"invalid_arguments"}),
        ('<function=f>{"count": 1}', ['f({"count": 1})'], {"odd_frame", "unclosed_call"}),
        ("<function=h>{1}</function>", ["final: <function=h>{1}"], {"not_a_call"}),
        ("<tool_call><function=f><parameter=count>1</parameter>{}</function></tool_call>",
         ['f({"count": 1})'], {"call_leftover"}),
        (f"{CALL}<parameter=text>\nx\ny\n</parameter>\n<parameter=count>\n5\n</parameter>\n{END}",
         ['f({"text": "x\\ny", "count": 5})'], set()),
        (f"{CALL}{END}", ["f({})"], set()),
        (f"{CALL}<parameter=text></parameter>{END}", ['f({"text": ""})'], set()),
        (f"{CALL}<parameter=text><function=g></parameter>{END}",
         ['f({"text": "<function=g>"})'], set()),
        (f"{CALL}<parameter=text>a <tool_call>b</tool_call> c</parameter>{END}",
         ['f({"text": "a <tool_call>b</tool_call> c"})'], set()),
        (f"{CALL}<parameter=other>\n5\n</parameter>\n{END}", ['f({"other": "5"})'], set()),
        (f'{CALL}<parameter="text">5</parameter>{END}', ['f({"text": "5"})'], set()),
        ("a <function=f> b", ["final: a <function=f> b"], {"not_a_call"}),
        ("a <function=f b>", ["final: a <function=f b>"], {"not_a_call"}),
        ("a <function=f>", ["final: a <function=f>"], {"not_a_call"}),
        ("a <function=f></function>", ["final: a", "f({})"], set()),
        ("a <function=f><parameter=text>b</parameter>", ["final: a", 'f({"text": "b"})'],
         {"unclosed_call"}),
        (f"<tool_call>{F}{{}}}}</tool_call>", ["f({})"], {"odd_frame"}),
        ("<tool_call><function=f></function>\n</function_invocation>\n</tool_call>", ["f({})"],
         {"call_leftover"}),
        ("<function=f>b", ["final: <function=f>b"], {"not_a_call"}),
        ("<function=f>\n</function>", ["f({})"], set()),
        ("<function=f>\n</function>\n</tool_call>", ["f({})"], set()),
        ("<function=f>\n</function>\nHi", ["f({})", "final: Hi"], set()),
        ("<function=f></function><function=g></function></tool_call>", ["f({})", "g({})"], set()),
        (f"{CALL}<parameter=count>5<parameter=text>x</parameter>{END}",
         ['f({"count": 5, "text": "x"})'], {"unclosed_parameter"}),
        (f"{CALL}<parameter=count>5{END}", ['f({"count": 5})'], {"unclosed_parameter"}),
        (f"{CALL}<parameter=count>5</parameter></tool_call>", ['f({"count": 5})'],
         {"unclosed_call"}),
        (f"{CALL}words</parameter>{END}", ["f({})"], {"call_leftover", "marker_in_body"}),
        (f"{CALL}<parameter=co<parameter=count>5</parameter>{END}",
         ['f({"count": 5})'], {"unclosed_tag"}),
        (f"{CALL}<parameter=co{END}", ["f({})"], {"unclosed_tag"}),
        ("<tool_call>\n<function=f<parameter=count>5</parameter></function></tool_call>",
         ['f({"count": 5})'], {"unclosed_tag"}),
        ("<tool_call><function=f</function></tool_call>", ["f({})"], {"unclosed_tag"}),
        ("<tool_call><function=f<function=g></function></tool_call>",
         ["g({})"], {"abandoned_call"}),
        (f"{CALL}<function=g></function></tool_call>", ["f({})", "g({})"], {"unclosed_call"}),
        (f"<tool_call><tool_call><function=f>\n{END}", ["f({})"], set()),
        ("<tool_call>words</tool_call>", ["final: words"], {"not_a_call"}),
        ("<tool_call></tool_call>", [], {"abandoned_call", "no_visible_output"}),
        ("<tool_call><function=a b>x</function></tool_call>", ["final: a bx"], {"not_a_call"}),
        ("<tool_call><function=a b<parameter=count>5</parameter></function></tool_call>",
         ["final: a bcount>5"], {"not_a_call"}),
        (CALL, ["f({})"], {"unclosed_call"}),
        (f"{CALL}<parameter=text>x", ['f({"text": "x) broken'], {"invalid_arguments"}),
        ("<tool_call><function=f", ["final: f"], {"not_a_call"}),
        ("<tool_call><function=f></function>", ["f({})"], set()),
        (f"<tool_call><function=f></function>text{END[11:]}",
         ["f({})", "final: text"], {"not_a_call"}),
        ("<tool_call><function=a b>x<function=g></function></tool_call>",
         ["final: a bx", "g({})"], {"not_a_call"}),
        ("<tool_call>x<tool_call><function=g></function></tool_call>",
         ["final: x", "g({})"], {"not_a_call"}),
    ],
)  # fmt: skip
def test_qwen3_coder(text: str, said: list[str], rules: set[str]) -> None:
    check(CODER, text, said, rules)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{CALL}<parameter=text>x\n", ['f({"text": "x) cut']),
        (f"{CALL}<parameter=te", ["f() cut"]),
        (f"{CALL}<parameter=text>x</parameter>", ['f({"text": "x") cut']),
        ("<tool_call><function=f", []),
        ("<tool_call>", []),
    ],
)
def test_qwen3_coder_that_is_cut_off(text: str, said: list[str]) -> None:
    assert CODER.read(text, LENGTH)[0] == said


@each(
    ("text", "said", "rules"),
    [
        ("<tool_call>f\n<arg_key>count</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
         ['f({"count": 5})'], set()),
        ("<tool_call>f<arg_key>text</arg_key>\n a b </arg_value><arg_key>count</arg_key>5"
         "</arg_value></tool_call>", ['f({"text": "a b ", "count": 5})'], {"odd_frame"}),
        ("<tool_call>ftext</arg_key><arg_value>a</arg_value></tool_call>",
         ['f({"text": "a"})'], {"odd_frame"}),
        ("a\n<tool_call>f text</arg_key><arg_value>b</arg_value></tool_call>",
         ["final: a", 'f({"text": "b"})'], {"odd_frame"}),
        ("<tool_call>h</arg_key></tool_call>", ["h({})"],
         {"undeclared_function", "marker_in_body"}),
        ("<tool_call>f<arg_key>text</arg_key><arg_value>a <tool_call>b</tool_call> c</arg_value>"
         "</tool_call>", ['f({"text": "a <tool_call>b</tool_call> c"})'], set()),
        (f"<tool_call>{F}{{}}}}</tool_call>", ["f({})"], {"odd_frame"}),
        ("a <tool_call> b c", ["final: a <tool_call> b c"], {"not_a_call"}),
        ("<tool_call>f<arg_key> text </arg_key><arg_value> x </arg_value></tool_call>",
         ['f({"text": " x "})'], set()),
        ("<tool_call>f<arg_key>other</arg_key><arg_value>[1]</arg_value></tool_call>",
         ['f({"other": [1]})'], set()),
        ("<tool_call>h<arg_key>a</arg_key><arg_value>5</arg_value></tool_call>",
         ['h({"a": 5})'], {"undeclared_function"}),
        ("<tool_call>f</tool_call><tool_call>g</tool_call>", ["f({})", "g({})"], set()),
        ("<tool_call>f", ["f({})"], {"unclosed_call"}),
        ("<tool_call>f<tool_call>g</tool_call>", ["f({})", "g({})"], {"unclosed_call"}),
        ("<tool_call>a b</tool_call>", ["final: a b"], {"not_a_call"}),
        ("<tool_call></tool_call>", [], {"abandoned_call", "no_visible_output"}),
        ("<tool_call>a b<arg_key>c</arg_key><arg_value>d</arg_value></tool_call>",
         ["final: a bcd"], {"not_a_call"}),
        ("<tool_call>f<arg_value>x</arg_value></tool_call>",
         ["f({})"], {"marker_in_body", "call_leftover"}),
        ("<tool_call>f<arg_key>count<arg_value>5</arg_value></tool_call>",
         ['f({"count": 5})'], {"unclosed_tag"}),
        ("<tool_call>f<arg_key>co<arg_key>count</arg_key><arg_value>5</arg_value></tool_call>",
         ['f({"count": 5})'], {"unclosed_tag"}),
        ("<tool_call>f<arg_key>count</arg_key></tool_call>", ["f({})"], {"unclosed_tag"}),
        ("<tool_call>f<arg_key>count</arg_key><arg_value>5<arg_key>text</arg_key>"
         "<arg_value></arg_value></tool_call>",
         ['f({"count": 5, "text": ""})'], {"unclosed_parameter"}),
        ("<tool_call>f<arg_key>count</arg_key><arg_value>5</tool_call>",
         ['f({"count": 5})'], {"unclosed_parameter"}),
        ("<tool_call>f<arg_key>text</arg_key><arg_value>x",
         ['f({"text": "x) broken'], {"invalid_arguments"}),
        ('<tool_call>f\n{"count": 1}\n</tool_call>', ['f({"count": 1})'], {"odd_frame"}),
        ('a <tool_call>f {"count": 1}', ["final: a", 'f({"count": 1})'],
         {"odd_frame", "unclosed_call"}),
        ("<tool_call>f {} x</tool_call>", ["f({})"], {"odd_frame", "call_leftover"}),
        ('<tool_call>f {"text": "</tool_call>"<arg_key>}</tool_call>',
         ['f({"text": "</tool_call>"})'], {"odd_frame", "marker_in_body"}),
        ("a <tool_call>h {}</tool_call>", ["final: a <tool_call>h {}</tool_call>"], {"not_a_call"}),
        ("<tool_call>h {}</tool_call>", ["final: h {}"], {"not_a_call"}),
        ("<tool_call>f {</tool_call>", ["f({) broken"], {"invalid_arguments"}),
    ],
)  # fmt: skip
def test_glm(text: str, said: list[str], rules: set[str]) -> None:
    model_says = GLM.read(text)
    assert model_says[0] == said
    assert set(model_says[1]) == rules
    assert Model("glm", "think", GLM.syntax.markers).read(text)[0] == said


def test_a_word_that_grows_is_not_looked_up_with_each_letter() -> None:
    lookups: list[str] = []
    syntax = GLM.syntax.calls
    assert syntax is not None
    reader = syntax.reader("<tool_call>", lookups.append)
    for letter in "f" * 128:
        assert list(reader.text(letter)) == []
        assert not reader.is_junk
    assert lookups == []


def test_what_a_custom_tool_and_python_take_is_text() -> None:
    tools = {
        "patch": ToolRule("patch", SegmentKind.CUSTOM_CALL, "patch"),
        "builtin:python": ToolRule("builtin:python", SegmentKind.CODE_INTERPRETER_CALL, "python"),
    }
    rules = OutputRules(tools, frozenset(tools))
    for called, name, key in (("patch", "patch", "input"), ("python", "builtin:python", "code")):
        text = f"<tool_call>{called}<arg_key>{key}</arg_key><arg_value>[1]</arg_value></tool_call>"
        assert GLM.read(text, rules=rules)[0] == [f'{name}({{"{key}": "[1]"}})']


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<tool_call>f<arg_key>text</arg_key><arg_value>x", ['f({"text": "x) cut']),
        ("<tool_call>f<arg_key>te", ["f() cut"]),
        ("<tool_call>f", []),
        ("<tool_call>f {", ["f({) cut"]),
        ("<tool_call>a b</arg_key>", []),
    ],
)
def test_glm_that_is_cut_off(text: str, said: list[str]) -> None:
    assert GLM.read(text, LENGTH)[0] == said


BODY = 'function<sep>f\n```json\n{"a": 1}\n```'


@each(
    ("text", "said", "rules"),
    [
        (f"<calls_begin><call_begin>{BODY}<call_end>\n<call_begin>{BODY}<call_end><calls_end>",
         ['f({"a": 1})'] * 2, set()),
        (f"<call_begin>{BODY}<call_end><calls_end>", ['f({"a": 1})'], {"odd_frame"}),
        ('<calls_begin><call_begin>function<sep>f\n{"a": 1}<call_end><calls_end>',
         ['f({"a": 1})'], {"odd_frame"}),
        ("<calls_begin><call_begin>function<sep><sep>f\n```json\n{}\n```<call_end><calls_end>",
         ["f({})"], {"odd_frame"}),
        ("<calls_begin><call_begin>tool<sep>f\n```json\n{}\n```<call_end><calls_end>",
         ["f({})"], {"odd_frame"}),
        ("<calls_begin><call_begin>function<sep>f\n```json\n{}\n``<call_end><calls_end>",
         ["f({})"], {"odd_frame"}),
        ("<calls_begin><call_begin>function<sep>f\n```json\n{}\n``` x<call_end><calls_end>",
         ["f({})"], {"call_leftover"}),
        ("<calls_begin><call_begin>function<sep>f\n```json\nx y\n```<call_end><calls_end>",
         ["f(x y\n```)"], {"invalid_arguments"}),
        ("<calls_begin><call_begin>function<sep>f<call_end><calls_end>",
         ["f({})"], {"empty_arguments"}),
        ("<calls_begin><call_begin>function<sep>f\n```json\nnull<call_end><calls_end>",
         ["f({})"], {"empty_arguments"}),
        ("<calls_begin><call_begin>function<sep>a b\nc<call_end><calls_end>",
         ["final: a bc"], {"not_a_call"}),
        ("<calls_begin><call_begin>words<call_end><calls_end>", ["final: words"], {"not_a_call"}),
        ("<calls_begin> x <calls_end>Hi", ["final: Hi"], {"call_leftover"}),
        (f"<calls_begin><call_begin>{BODY}<calls_end>", ['f({"a": 1})'], {"unclosed_call"}),
        (f"<calls_begin><call_begin>{BODY}", ['f({"a": 1})'], {"unclosed_call"}),
        ("<calls_begin><call_begin>function<sep>f\n```json\n{<sep>}\n```<call_end><calls_end>",
         ["f({})"], {"marker_in_body"}),
        ("a <calls_begin> b", [deepseek("final: a <calls_begin> b")], {"call_leftover"}),
        ("a <calls_begin> b c", [deepseek("final: a <calls_begin> b c")], {"not_a_call"}),
        (f"<calls_begin>{BODY}<call_end><calls_end>", ['f({"a": 1})'], {"odd_frame"}),
        ("a <call_begin> b c", [deepseek("final: a <call_begin> b c")], {"not_a_call"}),
        ('<calls_begin><call_begin>f<sep>{"a": 1}<call_end><calls_end>', ['f({"a": 1})'],
         {"odd_frame"}),
        ("<calls_begin><call_begin>function<sep>f\n```json\n[1, 2<call_end><calls_end>",
         ["f([1, 2) broken"], {"invalid_arguments"}),
    ],
)  # fmt: skip
def test_deepseek_v3(text: str, said: list[str], rules: set[str]) -> None:
    check(V3, deepseek(text), said, rules)


@pytest.mark.parametrize(
    ("text", "said", "rules"),
    [
        ('<calls_begin><call_begin>f<sep>{"a": 1}<call_end><call_begin>g<sep> {}<call_end>'
         "<calls_end>", ['f({"a": 1})', "g({})"], set()),
        ('<calls_begin>f<sep>{"a": 1}<call_end><calls_end>', ['f({"a": 1})'], {"odd_frame"}),
        ("<calls_begin><call_begin>f<sep>{}<call_end>g<sep>{}<call_end>so it is<calls_end>",
         ["f({})", "g({})"], {"odd_frame", "call_leftover"}),
        ("<calls_begin><call_begin>f<sep>{} x<call_end><calls_end>",
         ["f({})"], {"call_leftover"}),
        ("<calls_begin><call_begin>function<sep>f\n```json\n{}\n```<call_end><calls_end>",
         ["f({})"], {"odd_frame"}),
        ("<calls_begin><call_begin>f<sep>```json\n{}\n```<call_end><calls_end>",
         ["f({})"], {"odd_frame"}),
        ("<calls_begin><call_begin>a b<sep>{}<call_end><calls_end>",
         ["final: a b{}"], {"not_a_call"}),
        ("<calls_begin><call_begin><call_end><calls_end>",
         [], {"abandoned_call", "no_visible_output"}),
        ('<calls_begin><call_begin>f<sep>"{}"<call_end><calls_end>',
         ["f({})"], {"quoted_arguments"}),
    ],
)  # fmt: skip
def test_deepseek_v31(text: str, said: list[str], rules: set[str]) -> None:
    check(V31, deepseek(text), said, rules)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<calls_begin><call_begin>f<sep>{"a', ['f({"a) cut']),
        ("<calls_begin><call_begin>f<sep>", ["f() cut"]),
        ("<calls_begin><call_begin>f<sep>x", ["f(x) cut"]),
        ("<calls_begin><call_begin>f", []),
    ],
)
def test_deepseek_that_is_cut_off(text: str, said: list[str]) -> None:
    assert V31.read(deepseek(text), LENGTH)[0] == said
    assert V3.read(deepseek("<calls_begin><call_begin>function<sep>f"), LENGTH)[0] == []


@each(
    ("text", "said", "rules"),
    [
        ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}', ['f({"a": 1})', "g({})"], set()),
        ('[TOOL_CALLS]f[ARGS]{"a": "x\n"}', ['f({"a": "x\\n"})'], {"control_character"}),
        ("[TOOL_CALLS]f{}", ["f({})"], set()),
        ("[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", ["f({})"], set()),
        ("[TOOL_CALLS]f[ARGS]{} Hi", ["f({})", "final: Hi"], set()),
        ('[TOOL_CALLS]{"name": "f", "arguments": {}}', ["f({})"], {"odd_frame"}),
        ("[TOOL_CALLS]a b[ARGS]{}", ["final: a b{}"], {"not_a_call"}),
        ("[TOOL_CALLS]a b{}", ["final: a b{}"], {"not_a_call"}),
        ("[TOOL_CALLS]f", ["final: f"], {"not_a_call"}),
        ("a [TOOL_CALLS] b c", ["final: a [TOOL_CALLS] b c"], {"not_a_call"}),
        ("[TOOL_CALLS]", [], {"abandoned_call", "no_visible_output"}),
        ("[TOOL_CALLS]f[ARGS]{[ARGS]}", ["f({})"], {"marker_in_body"}),
        ("[TOOL_CALLS]f[ARGS]{}[ARGS]", ["f({})"], {"marker_in_body"}),
        ('[TOOL_CALLS]f[ARGS]{"a"[TOOL_CALLS]g{}',
         ['f({"a") broken', "g({})"], {"invalid_arguments"}),
        ("[TOOL_CALLS]f[CALL_ID]abc", ["f({})"], {"empty_arguments"}),
        ("[TOOL_CALLS]f[ARGS]true", ["f(true)"], {"invalid_arguments"}),
        ('[TOOL_CALLS]f[ARGS]{"text": "[/TOOL_CALLS]"}[/TOOL_CALLS]',
         ['f({"text": "[/TOOL_CALLS]"})'], {"marker_in_body"}),
        ("Hi [/TOOL_CALLS]", ["final: Hi [/TOOL_CALLS]"], set()),
    ],
)  # fmt: skip
def test_mistral(text: str, said: list[str], rules: set[str]) -> None:
    check(MISTRAL, text, said, rules)


@pytest.mark.parametrize(
    ("text", "said", "rules"),
    [
        ('[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}] Hi',
         ["f({})", "g({})", "final: Hi"], set()),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}}', ["f({})"], {"unclosed_call"}),
        ('[TOOL_CALLS][{"name": "f", "argu', ["f(}"], set()),
        ('[TOOL_CALLS][{"name": "f", "arguments": {}}{"name": "g", "arguments": {}}]',
         ["f({})", "g({})"], {"sloppy_json"}),
        ('[TOOL_CALLS][,{"name": "f", "arguments": {}}]', ["f({})"], {"sloppy_json"}),
        ("[TOOL_CALLS][words", ["final: words"], {"not_a_call"}),
        ("[TOOL_CALLS][]", [], {"abandoned_call", "no_visible_output"}),
        ("a [TOOL_CALLS][]b", ["final: a [TOOL_CALLS][]b"], {"abandoned_call"}),
    ],
)  # fmt: skip
def test_mistral_before_version_11(text: str, said: list[str], rules: set[str]) -> None:
    if "argu" in text and text.endswith("argu"):
        assert LIST.read(text, LENGTH)[0] == ["f() cut"]
    else:
        check(LIST, text, said, rules)


@each(
    ("text", "said", "rules"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', ['f({"a": 1})'], set()),
        ('<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
         ["f({})", "g({})"], set()),
        (' \n{"type": "function", "name": "f", "parameters": {}}', ["f({})"], set()),
        ('{"name": "Bob", "age": 3} is', ['final: {"name": "Bob", "age": 3} is'], set()),
        ('{"name": "Bob"}', ['final: {"name": "Bob"}'], set()),
        ('{"name": "f", "parameters": {}} {"name": "g", "parameters": {}}',
         ["f({})", "g({})"], {"sloppy_json"}),
        ("{x", ["final: {x"], set()),
        ('{"na', ['final: {"na'], set()),
        ('Hi {"name": "f", "parameters": {}}', ['final: Hi {"name": "f", "parameters": {}}'],
         set()),
        ('{"name": "f", "parameters": {}} Hi', ["f({})", "final: Hi"], set()),
        ('{"name": "f", "parameters": {}}</b>', ["f({})", "final: </b>"], set()),
        ("<|python_tag|>print(1)", ["final: print(1)"], {"not_a_call"}),
        ('<|python_tag|>{"name": "f"<|python_tag|>{"name": "g", "parameters": {}}',
         ["f({})", "g({})"], {"empty_arguments"}),
        ('{"name": "f", "parameters": {"a"', ['f({"a") broken'], {"invalid_arguments"}),
        ('{"name": "f", "parameters": {}}; ', ["f({})"], set()),
        ("a <|python_tag|>{ b{", ["final: a <|python_tag|>{ b{"], {"not_a_call"}),
        ("a <|python_tag|><|python_tag|> b", ["final: a <|python_tag|><|python_tag|> b"],
         {"abandoned_call", "not_a_call"}),
    ],
)  # fmt: skip
def test_llama3_json(text: str, said: list[str], rules: set[str]) -> None:
    check(LLAMA, text, said, rules)


def test_nothing_is_told_behind_the_end_of_a_region() -> None:
    for text, rest in (('{"x": 1} b', '{"x": 1} b'), ('{"name": "f", "parameters": {}} b', "b")):
        reader = LLAMA3_JSON.reader("", lambda _: {})
        assert [*reader.text(text)][-1] == Left(rest)


def test_the_front_of_a_call_is_what_it_is_written_with() -> None:
    for calls in CALLS.values():
        if calls is None:
            continue
        whole = spelled(calls.written([("f", '{"a": 1}')]))
        for front in (calls.front(None), calls.front("f")):
            assert whole.startswith(spelled(front))
            assert not spelled(front).endswith(" ")


def spelled(written: tuple[Mark | str, ...]) -> str:
    return "".join(part.text if isinstance(part, Mark) else part for part in written)
