"""The input of a custom tool, out of the JSON around it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.eventlog.fold.call_inputs import CustomInput

laws = settings(deadline=None)


def unwrap(*texts: str, is_complete: bool = True) -> str:
    reader = CustomInput()
    said = [reader.feed(text) for text in texts]
    return "".join([*said, reader.finish(is_complete=is_complete)])


def test_the_input_streams_as_soon_as_its_string_has_begun() -> None:
    reader = CustomInput()
    assert reader.feed('{ "input') == ""
    assert reader.feed('" : "ab') == "ab"
    assert reader.feed("c\\") == "c"
    assert reader.feed('n"') == "\n"
    assert reader.feed("}") == ""
    assert reader.finish(is_complete=True) == ""


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        pytest.param('{"input":"a"}', "a", id="as it was told"),
        pytest.param(' {\n "input" : "a" } ', "a", id="whitespace"),
        pytest.param('{"input":"a","why":"b"}', "a", id="something beside it"),
        pytest.param(r'{"input":"\"\\\/\b\f\n\r\t\u00e9"}', '"\\/\b\f\n\r\té', id="escapes"),
        pytest.param(r'{"input":"\ud83d\ude00\ud83d!"}', "\U0001f600\ufffd!", id="surrogates"),
        pytest.param(r'{"input":"\d \u12G"}', r"\d \u12G", id="escapes that are none"),
        pytest.param('{"input":"print("hi")"}', 'print("hi")', id="quotes nobody escaped"),
        pytest.param(r'{"input":"a"b\n"}', 'a"b\n', id="an escape behind such a quote"),
        pytest.param('{"input":"a', "a", id="a string without an end"),
        pytest.param('{"input":"a"', "a", id="an object without an end"),
        pytest.param("{}", "", id="no input"),
        pytest.param("*** Begin Patch", "*** Begin Patch", id="no JSON"),
        pytest.param('{"text":"a"}', '{"text":"a"}', id="another name"),
        pytest.param('{"in put":"a"}', '{"in put":"a"}', id="a name with a space"),
        pytest.param('{"input":1}', '{"input":1}', id="no string"),
        pytest.param('{"inp', '{"inp', id="the front of it"),
        pytest.param("{" + " " * 300 + '"input":"a"}', "{" + " " * 300 + '"input":"a"}', id="gaps"),
    ],
)
def test_what_the_model_wrote_is_read_as_it_was_meant(written: str, meant: str) -> None:
    assert unwrap(written) == meant
    assert unwrap(*written) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [('{"inp', ""), ('{"input":"a\\', "a"), ('{"input":"a\\ud83d', "a"), ('{"input":"a", "w', "a")],
)
def test_what_was_cut_off_leaves_no_half_of_the_wrapping(written: str, meant: str) -> None:
    assert unwrap(written, is_complete=False) == meant
    assert unwrap(*written, is_complete=False) == meant


@pytest.mark.slow
@laws
@given(st.text(), st.booleans(), st.data())
def test_every_input_comes_out_as_it_was_wrapped(
    text: str, is_ascii: bool, data: st.DataObject
) -> None:
    written = json.dumps({"input": text}, ensure_ascii=is_ascii)
    cut = data.draw(st.integers(0, len(written)))
    assert unwrap(written[:cut], written[cut:]) == text


@laws
@given(
    st.lists(
        st.sampled_from(
            ['{"input":"', '"', "}", "\\", "u", "d83d", "\\ude00", " ", ",", "a", "{", "\\u00e9"]
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_the_cut_changes_nothing(pieces: list[str], is_complete: bool) -> None:
    whole = "".join(pieces)
    assert unwrap(*pieces, is_complete=is_complete) == unwrap(whole, is_complete=is_complete)
    assert unwrap(*whole, is_complete=is_complete) == unwrap(whole, is_complete=is_complete)
