from __future__ import annotations

import pytest

from gateway.generation import SegmentKind
from gateway.models.harmony.message_headers import (
    NO_MARKER,
    MessageRoute,
    Part,
    adopt_spoken,
    read_header,
    route,
    tool_of_role,
)
from gateway.models.harmony.recovery import Rule
from gateway.models.harmony.tokenizer import CHANNEL, CONSTRAIN, MESSAGE, START
from tests.fakes.cases import each

_TOOLS = frozenset({"f", "web-browsing", "math.sum", "encode", "python", "user"})
_CALL = SegmentKind.FUNCTION_CALL


@pytest.mark.parametrize(
    "parts",
    [
        [Part(START, "assistant"), Part(CHANNEL, "commentary to=functions.f")],
        [Part(START, "assistant"), Part(CHANNEL, "commentary to=functions.f json")],
        [Part(START, "assistant to=functions.f"), Part(CHANNEL, "commentary json")],
        [Part(NO_MARKER, " to=functions.f"), Part(CHANNEL, "commentary")],
        [Part(NO_MARKER, ""), Part(CHANNEL, "commentary to=functions.f "), Part(CONSTRAIN, "json")],
        [
            Part(START, "assistant to=functions.f"),
            Part(CHANNEL, "commentary "),
            Part(CONSTRAIN, "json"),
        ],
    ],
)
def test_trained_forms_of_a_call_need_no_rule(parts: list[Part]) -> None:
    header = read_header(parts, trapped=False)

    assert header.rules == ()
    assert header.prose == ""
    assert route(header, _TOOLS) == MessageRoute(_CALL, "f")


@pytest.mark.requirement("harmony.calls")
@each(
    ("text", "name", "rules"),
    [
        ("to=f", "f", {Rule.RECIPIENT_NORMALISED}),
        ("to= functions.f", "f", {Rule.RECIPIENT_NORMALISED}),
        ("to=functions.fjson", "f", {Rule.RECIPIENT_NORMALISED}),
        ("to=functions.fcode", "f", {Rule.RECIPIENT_NORMALISED}),
        ("to=functions.functions.f", "f", {Rule.RECIPIENT_NORMALISED}),
        ("to=functions.f.", "f", {Rule.RECIPIENT_NORMALISED}),
        ("to=functions.encode", "encode", set()),
        ("to=functions.web-browsing code", "web-browsing", {Rule.ODD_CONTENT_TYPE}),
        ("to=functions.math.sum", "math.sum", set()),
        ("to=functions.f to=functions.f", "f", {Rule.DUPLICATE_RECIPIENT}),
        ("to=assistant to=functions.f", "f", {Rule.DUPLICATE_RECIPIENT}),
        ("to=functions.g to=functions.f", "f", {Rule.DUPLICATE_RECIPIENT}),
        ("to=functions.g", "g", {Rule.UNDECLARED_FUNCTION}),
        ("to=functions.gjson", "gjson", {Rule.UNDECLARED_FUNCTION}),
        ("to=python", "python", {Rule.RECIPIENT_NORMALISED}),
        ("to=functions.f to=", "f", {Rule.HEADER_LEFTOVER}),
        ("to=functions.f\N{EN DASH}commentary", "f", {Rule.HEADER_LEFTOVER}),
    ],
)
def test_recipients_are_recognised_however_they_are_spelt(
    text: str, name: str, rules: set[Rule]
) -> None:
    header = read_header([Part(CHANNEL, f"commentary {text}")], trapped=False)
    target = route(header, _TOOLS)

    assert (target.kind, target.name) == (_CALL, name)
    assert {*header.rules, *target.rules} == rules


@pytest.mark.requirement("harmony.built-ins")
@pytest.mark.parametrize(
    ("text", "kind", "rule"),
    [
        ("commentary to=assistant", SegmentKind.REASONING, Rule.ADDRESSED_TO_ASSISTANT),
        ("final to=assistant", SegmentKind.REASONING, Rule.ADDRESSED_TO_ASSISTANT),
        ("analysis to=browser.search", SegmentKind.REASONING, Rule.BUILTIN_NOT_ENABLED),
        ("commentary to=container.exec", SegmentKind.REASONING, Rule.BUILTIN_NOT_ENABLED),
        ("commentary to=nobody", SegmentKind.REASONING, Rule.UNKNOWN_RECIPIENT),
        ("commentary to=functions.", SegmentKind.REASONING, Rule.UNKNOWN_RECIPIENT),
        ("final to=nobody", SegmentKind.FINAL, Rule.UNKNOWN_RECIPIENT),
    ],
)
def test_what_no_client_can_answer_is_not_shown_as_a_call(
    text: str, kind: SegmentKind, rule: Rule
) -> None:
    header = read_header([Part(CHANNEL, text)], trapped=False)

    assert route(header, frozenset()) == MessageRoute(kind, rules=(rule,))


def test_the_user_is_no_recipient() -> None:
    header = read_header([Part(CHANNEL, "final to=user")], trapped=False)

    assert route(header, frozenset()) == MessageRoute(
        SegmentKind.FINAL, rules=(Rule.HEADER_LEFTOVER,)
    )


@each(
    ("parts", "channel", "prose"),
    [
        ([Part(CHANNEL, "final__HANDOFF__")], "final", "__HANDOFF__"),
        ([Part(CHANNEL, "final The answer is 42.\n")], "final", "The answer is 42.\n"),
        ([Part(CHANNEL, "final 42")], "final", "42"),
        ([Part(CHANNEL, "final 👍")], "final", "👍"),
        ([Part(CHANNEL, 'final {"a": 1}')], "final", '{"a": 1}'),
        ([Part(CHANNEL, 'final json {"a": 1}')], "final", '{"a": 1}'),
        ([Part(CHANNEL, "final json is a format")], "final", "json is a format"),
        ([Part(CHANNEL, "commentary to=f "), Part(CONSTRAIN, 'json{"a"')], "commentary", '{"a"'),
        (
            [Part(CHANNEL, "final is it "), Part(CONSTRAIN, "a word: yes")],
            "final",
            "is it a word: yes",
        ),
        ([Part(NO_MARKER, 'say <a to="x"> and to=y')], "", 'say <a to="x"> and to=y'),
        ([Part(NO_MARKER, "final words")], "", "final words"),
        ([Part(START, "assistantfinal words")], "final", "words"),
        ([Part(START, "assistant final words")], "", "final words"),
        ([Part(NO_MARKER, "42")], "", "42"),
        ([Part(NO_MARKER, "👍")], "", "👍"),
        ([Part(CHANNEL, "commentary?commentary?")], "commentary", ""),
        ([Part(CHANNEL, "commentary 2?")], "commentary", ""),
        ([Part(CHANNEL, "??")], "", ""),
        ([Part(CHANNEL, "analysis")], "analysis", ""),
    ],
)
def test_a_trapped_body_is_what_follows_the_front_of_the_header(
    parts: list[Part], channel: str, prose: str
) -> None:
    header = read_header(parts, trapped=True)

    assert (header.channel, header.prose) == (channel, prose)


@each(
    ("part", "role", "rules"),
    [
        (Part(START, "assistant"), "assistant", ()),
        (Part(START, "user"), "user", ()),
        (Part(START, " functions.f to=assistant"), "functions.f", ()),
        (Part(START, ""), "assistant", (Rule.MISSING_ROLE,)),
        (Part(START, " to=functions.f"), "assistant", (Rule.MISSING_ROLE,)),
        (Part(START, "final"), "assistant", (Rule.MISSING_ROLE, Rule.HEADER_AS_TEXT)),
        (Part(NO_MARKER, "assistant"), "assistant", (Rule.DOUBLED_START,)),
        (Part(NO_MARKER, "assistantfinal"), "assistant", (Rule.DOUBLED_START, Rule.HEADER_AS_TEXT)),
    ],
)
def test_the_role_is_the_first_word_and_assistant_if_there_is_none(
    part: Part, role: str, rules: tuple[Rule, ...]
) -> None:
    header = read_header([part], trapped=False)

    assert (header.role, header.rules) == (role, rules)


def test_the_first_known_channel_counts() -> None:
    parts = [Part(CHANNEL, "?"), Part(CHANNEL, "commentary"), Part(CHANNEL, "analysis")]
    header = read_header(parts, trapped=False)

    assert header.channel == "commentary"
    assert header.rules == (Rule.DUPLICATE_CHANNEL, Rule.HEADER_LEFTOVER)


@each(("trapped", "channel"), [(False, "analysis"), (True, "")])
def test_a_channel_in_capitals_counts_unless_the_body_may_be_in_the_header(
    trapped: bool, channel: str
) -> None:
    header = read_header([Part(CHANNEL, "Analysis")], trapped=trapped)

    assert header.channel == channel


def test_only_words_in_an_analysis_header_are_thoughts() -> None:
    def thoughts(text: str) -> str:
        return read_header([Part(CHANNEL, text)], trapped=False).reasoning_prose

    assert thoughts("analysis need the release") == "need the release"
    assert thoughts("analysis?analysis 2") == ""
    assert thoughts("commentary need the release") == ""


@each(
    ("text", "following", "part"),
    [
        ("", CHANNEL, Part(NO_MARKER, "")),
        ("assistant", CHANNEL, Part(NO_MARKER, "")),
        ("assistant to=functions.f", CHANNEL, Part(NO_MARKER, "to=functions.f")),
        ("commentary to=functions.f", MESSAGE, Part(CHANNEL, "commentary to=functions.f")),
        ("commentary to=functions.f ", CONSTRAIN, Part(CHANNEL, "commentary to=functions.f ")),
        ("commentary to=functions.f", CHANNEL, Part(CHANNEL, "commentary to=functions.f")),
        ("assistantfinal", MESSAGE, Part(CHANNEL, "final")),
        ("Now: commentary to=f", MESSAGE, Part(CHANNEL, "commentary to=f")),
        ("final", CHANNEL, None),
        ("finally", MESSAGE, None),
        ("The final word", MESSAGE, None),
        ("Let me see.", CHANNEL, None),
        # As long as a header may be: all splits of the spaces would take seconds.
        (" " * 32_000 + "x", CHANNEL, None),
    ],
)
def test_text_between_messages_may_be_a_header_without_markers(
    text: str, following: int, part: Part | None
) -> None:
    adopted = adopt_spoken(text, following)

    assert (adopted[0] if adopted else None) == part


def test_only_a_tool_that_is_no_role_can_be_called_by_role() -> None:
    assert tool_of_role("f", _TOOLS) == tool_of_role("functions.f", _TOOLS) == "f"
    assert not tool_of_role("user", _TOOLS)
    assert not tool_of_role("g", _TOOLS)


def test_a_call_is_hidden_when_the_request_allows_none() -> None:
    header = read_header([Part(CHANNEL, "commentary to=functions.f")], trapped=False)
    routed = route(header, None)
    assert routed.kind is SegmentKind.REASONING
    assert routed.rules == (Rule.CALL_NOT_ALLOWED,)
    assert not tool_of_role("f", None)


@pytest.mark.parametrize("name", ["x" * 129, ""])
def test_a_name_that_no_client_could_send_back_is_no_call(name: str) -> None:
    header = read_header([Part(CHANNEL, f"commentary to=functions.{name}")], trapped=False)
    assert route(header, frozenset()).kind is not SegmentKind.FUNCTION_CALL
