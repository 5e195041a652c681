"""Code that comes as it is, and code that comes in JSON."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.eventlog.fold.call_inputs import BEFORE_CHARS_MAX, PythonCode
from tests.fakes.cases import each

WRAPPED = '{"code": "print(1)\\nx"}'
_PIECES = st.sampled_from(
    ["{", '"', "code", '"code"', ":", " ", "\n", "}", "x = 1", '{"code": "', "\\n", "c", "od", "e"]
)
_TEXTS = st.lists(_PIECES, max_size=12)


def read(*parts: str, is_complete: bool = True) -> list[str]:
    code = PythonCode()
    return [*map(code.feed, parts), code.finish(is_complete=is_complete)]


@each(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("", ""),
        (WRAPPED, "print(1)\nx"),
        (f" \n{WRAPPED}\n", "print(1)\nx"),
        ('{ "code" : "" }', ""),
        ('{"code": 1}', '{"code": 1}'),
        ('{"code": "a", "b": 1}', '{"code": "a", "b": 1}'),
        ('{"code": "a"', '{"code": "a"'),
        ('{"code": "a"}["code"]', '{"code": "a"}["code"]'),
        ('{"codes": "a"}', '{"codes": "a"}'),
        ("{x for x in y}", "{x for x in y}"),
        ('{"co', '{"co'),
        ("  ", "  "),
    ],
)
def test_what_is_wrapped_and_what_is_not(text: str, code: str) -> None:
    assert "".join(read(text)) == code
    assert "".join(read(*text)) == code


def test_code_streams_from_where_it_can_be_no_json() -> None:
    assert read("{", "x", " = 1", is_complete=True) == ["", "{x", " = 1", ""]
    assert read(" ", "print", "(1)") == ["", " print", "(1)", ""]


def test_what_was_cut_off_is_shown_as_it_is() -> None:
    assert read('{"code": "a', "b", is_complete=False) == ["", "", '{"code": "ab']
    assert read(WRAPPED, is_complete=False) == ["", WRAPPED]


@example([" " * BEFORE_CHARS_MAX, WRAPPED])
@example([" " * (BEFORE_CHARS_MAX - 10), WRAPPED])
@example([" " * (BEFORE_CHARS_MAX - 9), WRAPPED])
@given(_TEXTS)
def test_the_cut_changes_nothing(parts: list[str]) -> None:
    whole = "".join(parts)
    assert "".join(read(*parts)) == "".join(read(*whole)) == "".join(read(whole))
    assert "".join(read(*parts, is_complete=False)) == whole
