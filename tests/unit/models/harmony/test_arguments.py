from __future__ import annotations

from gateway.models.harmony.call_arguments import Arguments, Conclusion
from gateway.models.harmony.recovery import Rule
from gateway.models.json_values import DEPTH_MAX
from tests.fakes.cases import each


def _feed(text: str, size: int) -> tuple[str, Conclusion]:
    arguments = Arguments()
    flowed = "".join(arguments.feed(text[at : at + size]) for at in range(0, len(text), size))
    conclusion = arguments.finish()
    return flowed + conclusion.text, conclusion


@each("size", [1, 2, 3, 1000])
@each(
    ("body", "wanted", "is_json", "rules"),
    [
        ('{"a": [1, {"b": "}"}]}', '{"a": [1, {"b": "}"}]}', True, ()),
        ("[1, 2]", "[1, 2]", True, ()),
        ('"text"', '"text"', True, ()),
        (r'{"a": "\"}\\"}', r'{"a": "\"}\\"}', True, ()),
        ('{"code": "a\nb"}', r'{"code": "a\nb"}', True, (Rule.CONTROL_CHARACTER,)),
        (
            '{\n\t"a\tb": "\\\n"\n}',
            '{\n\t"a\\tb": "\\\n"\n}',
            False,
            (Rule.INVALID_ARGUMENTS, Rule.CONTROL_CHARACTER),
        ),
        (
            '{"a": "\n"}{"a": "\n"}',
            r'{"a": "\n"}',
            True,
            (Rule.REPEATED_ARGUMENTS, Rule.CONTROL_CHARACTER),
        ),
        ('{"n": ' + "9" * 5000 + "}", '{"n": ' + "9" * 5000 + "}", True, ()),
        ('{"a": NaN}', '{"a": NaN}', False, (Rule.INVALID_ARGUMENTS,)),
        ("[-Infinity]", "[-Infinity]", False, (Rule.INVALID_ARGUMENTS,)),
        ("", "{}", True, (Rule.EMPTY_ARGUMENTS,)),
        (" \n", "{}", True, (Rule.EMPTY_ARGUMENTS,)),
        (' \n{"a": 1}', '{"a": 1}', True, (Rule.PADDED_ARGUMENTS,)),
        ('{"a": 1} \n', '{"a": 1}', True, (Rule.PADDED_ARGUMENTS,)),
        ('{"a": 1}{"a": 1}', '{"a": 1}', True, (Rule.REPEATED_ARGUMENTS,)),
        ("{} {}\n{} ", "{}", True, (Rule.REPEATED_ARGUMENTS,)),
        ('{"a": 1}{"b": 1}', '{"a": 1}{"b": 1}', False, (Rule.INVALID_ARGUMENTS,)),
        ('{"a": 1} {"a"', '{"a": 1} {"a"', False, (Rule.INVALID_ARGUMENTS,)),
        ("  ls -la ", "  ls -la ", False, (Rule.INVALID_ARGUMENTS,)),
        ('{"loc', '{"loc', False, (Rule.INVALID_ARGUMENTS,)),
        ("{a: b} {a: b}", "{a: b} {a: b}", False, (Rule.INVALID_ARGUMENTS,)),
        ("{]  ", "{]  ", False, (Rule.INVALID_ARGUMENTS,)),
        ('{"a": 1}}', '{"a": 1}', True, (Rule.STRAY_CLOSER,)),
        ('{"a": [1]} ]}\n"`', '{"a": [1]}', True, (Rule.STRAY_CLOSER,)),
        ('{"a": 1} and', '{"a": 1} and', False, (Rule.INVALID_ARGUMENTS,)),
        ('```json\n{"a": 1}\n```', '{"a": 1}', True, (Rule.FENCED_ARGUMENTS,)),
        (' ```\n{"a": 1}\n``` \n', '{"a": 1}', True, (Rule.FENCED_ARGUMENTS,)),
        ("`[1]`", "[1]", True, (Rule.FENCED_ARGUMENTS,)),
        ('```{"a": 1}', '{"a": 1}', True, (Rule.FENCED_ARGUMENTS,)),
        ("```json\n{}}\n```", "{}", True, (Rule.FENCED_ARGUMENTS, Rule.STRAY_CLOSER)),
        ("```json\n{} {}", "{}", True, (Rule.FENCED_ARGUMENTS, Rule.REPEATED_ARGUMENTS)),
        ("```\n{}\n``` so", "{}\n``` so", False, (Rule.INVALID_ARGUMENTS,)),
        ("```sh\nls\n```", "```sh\nls\n```", False, (Rule.INVALID_ARGUMENTS,)),
        ("```json\n", "```json\n", False, (Rule.INVALID_ARGUMENTS,)),
        ("`````{}", "`````{}", False, (Rule.INVALID_ARGUMENTS,)),
        ("```" + " " * 62 + "{}", "```" + " " * 62 + "{}", False, (Rule.INVALID_ARGUMENTS,)),
    ],
)
def test_one_json_value_is_made_of_what_the_model_wrote(
    size: int, body: str, wanted: str, is_json: bool, rules: tuple[Rule, ...]
) -> None:
    text, conclusion = _feed(body, size)

    assert text == wanted
    assert conclusion.is_json is is_json
    assert conclusion.rules == rules


def test_text_flows_up_to_the_end_of_the_first_value_and_waits_behind_it() -> None:
    arguments = Arguments()

    assert arguments.feed(' {"a"') == '{"a"'
    assert arguments.feed(": 1}{") == ": 1}"
    assert arguments.feed('"b"}') == ""
    assert arguments.finish().text == '{"b"}'


@each(
    ("body", "is_broken"),
    [
        ('{"a": "b', True),
        ("[1", True),
        ("```json\n{", True),
        ("{}", False),
        ("{}}", False),
        ("{} and", False),
        ("ls", False),
        ("{a: b}", False),
        ("", False),
        ("```json", False),
    ],
)
def test_arguments_are_broken_that_end_in_the_middle_of_a_value(body: str, is_broken: bool) -> None:
    assert _feed(body, 1)[1].is_broken is is_broken


def test_nesting_beyond_the_bound_is_passed_through_as_it_is() -> None:
    deepest, deeper = ("[" * depth + "]" * depth for depth in (DEPTH_MAX, DEPTH_MAX + 1))
    arguments = Arguments()

    assert arguments.feed(deepest + deeper) == deepest
    assert arguments.finish().text == deeper

    arguments = Arguments()
    assert arguments.feed(f"{deeper} ") == f"{deeper} "
    assert not arguments.finish().is_json


def test_endless_brackets_are_no_json_and_no_error() -> None:
    text, conclusion = _feed("[" * 50_000 + "]" * 50_000, 1_000)

    assert len(text) == 100_000
    assert not conclusion.is_json
