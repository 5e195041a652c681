"""The token view: every id of a log in its order, with what became of it."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.entries import (
    Entry,
    Finished,
    Hop,
    Mark,
    Repair,
    Tokens,
    TurnEnded,
    TurnStarted,
    pack,
    portions,
)
from gateway.generation import FinishReason, TokenLogprob
from gateway.models.harmony.tokenizer import FIRST_SPECIAL
from gateway.services.token_view import UNKNOWN, LogView, TokenView
from tests.fakes.harmony_script import harmony, script_ids
from tests.fakes.response_heads import NO_RULES, response_head
from tests.fakes.staged_run import folds

if TYPE_CHECKING:
    from collections.abc import Iterable

CALL = """<|channel|>commentary to=functions.f <|message|>  {"a": "b c d e"}   {"a": 1}<|call|>"""
FINAL = script_ids("<|channel|>final<|message|>")
THOUGHT = script_ids("<|channel|>analysis<|message|>Hm, né 東京 🙂<|end|>")
NEXT = script_ids("<|start|>assistant")
PIECES = [
    FINAL,
    THOUGHT,
    NEXT,
    script_ids(" the sea"),
    script_ids("é\N{MELTING FACE} 東京 "),
    script_ids("a") * 300,
    [harmony().vocabulary.byte_ids[0x80]],  # no UTF-8
    script_ids("<|constrain|>"),
    script_ids("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"),
    script_ids(CALL),
    script_ids("<|return|>"),
]


def new_view() -> LogView:
    return LogView(harmony(), folds(response_head(), NO_RULES)())


def viewed(entries: Iterable[Entry]) -> tuple[LogView, list[Any]]:
    """The view of a log, and its events as clients see them."""
    log = list(entries)
    view, fold = new_view(), folds(response_head(), NO_RULES)()
    for portion in portions(pack(log)):
        view.add(portion)
    return view, [event for entry in log for event in fold.apply(entry)]


def written(ids: list[int]) -> list[tuple[int, ...]]:
    """Ids as runs write them: markers apart from text."""
    runs = groupby(ids, lambda token: token if token >= FIRST_SPECIAL else None)
    return [tuple(run) for _, run in runs]


@st.composite
def harmony_logs(draw: st.DrawFn) -> list[Entry]:
    said = [
        token for piece in draw(st.lists(st.sampled_from(PIECES), max_size=9)) for token in piece
    ]
    log: list[Entry] = [TurnStarted(7, tuple(draw(st.sampled_from([(), tuple(FINAL)]))))]
    while said:
        size = draw(st.sampled_from([1, 1, 1, 7, 400]))
        if size == 400:  # a paced stream
            log += [Tokens((token,)) for token in said[:size]]
        else:
            log += [Tokens(piece) for piece in written(said[:size])]
        said = said[size:]
        log += draw(st.sampled_from([[], [], [Hop("backend", 9)], [Mark("token", 5)]]))
    return log


@given(harmony_logs())
def test_the_view_is_all_ids_of_the_log_each_in_its_entry(log: list[Entry]) -> None:
    view, events = viewed(log)
    expected = [
        (token, number)
        for number, entry in enumerate(log)
        for token in (
            entry.prefill if isinstance(entry, TurnStarted) else getattr(entry, "ids", ())
        )
    ]
    assert list(zip(view.ids, view.entries, strict=True)) == expected
    pages, after = [], -1
    while page := view.page(after, 5):
        pages += page
        after = page[-1]["first"] + len(page[-1]["tokens"]) - 1
    assert [token[0] for run in pages for token in run["tokens"]] == list(view.ids)
    assert [run["first"] for run in pages][:1] == [0][: len(view)]
    numbers = [number for number in view.events if number != UNKNOWN]
    assert numbers == sorted(numbers)
    assert set(numbers) <= {event.sequence_number for event in events}


@given(harmony_logs())
def test_events_are_made_of_the_tokens_that_lead_to_them(log: list[Entry]) -> None:
    view, events = viewed(log)
    for event in events:
        data = orjson.loads(event.data)
        if data["type"] != "response.output_text.delta" or "\ufffd" in data["delta"]:
            continue
        own = [at for at, number in enumerate(view.events) if number == event.sequence_number]
        spelled = b"".join(view.pieces[at].spelling for at in own if view.pieces[at].part == "body")
        text = spelled.decode("utf-8", "replace")
        # The first bytes of a character may be in a token that led to the event before.
        delta = data["delta"][text.startswith("\ufffd") :]
        assert delta in text


def test_headers_are_taken_apart() -> None:
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    view, _ = viewed([TurnStarted(1), Tokens(tuple(script_ids(call)))])
    runs = [
        (run["part"], "".join(token[1] for token in run["tokens"])) for run in view.page(-1, 99)
    ]
    assert runs == [
        ("marker", "<|channel|>"),
        ("channel", "commentary"),
        ("recipient", " to=functions.f "),
        ("marker", "<|constrain|>"),
        ("content_type", "json"),
        ("marker", "<|message|>"),
        ("body", "{}"),
        ("marker", "<|call|>"),
    ]


def test_a_marker_inside_of_a_body_changes_nothing_and_an_id_that_is_none_has_a_name() -> None:
    pieces = harmony().anatomy([*FINAL, *script_ids("a<|constrain|>b"), 200_500])
    assert [piece.part for piece in pieces[3:]] == ["body", "marker", "body", "marker"]
    assert pieces[-1].spelling == b"<|reserved_200500|>"


def test_what_was_taken_back_stays_with_its_rule_and_seams_are_marked() -> None:
    words = script_ids("one two three")
    view, _ = viewed(
        [
            TurnStarted(1, tuple(FINAL[:1])),
            Tokens(tuple(FINAL[1:])),
            Repair(len(FINAL) - 1, "second_answer"),
            Hop("backend", 4),
            Tokens((*FINAL[1:], *words)),
            TurnEnded(FinishReason.STOP),
            Finished("completed", 1),
        ]
    )
    assert set(view.rules.values()) == {"second_answer"}
    optional = ("rule", "seam", "prefill")
    assert [(run["part"], *map(run.get, optional)) for run in view.page(-1, 99)] == [
        ("marker", None, None, True),
        ("channel", "second_answer", None, None),
        ("marker", "second_answer", None, None),
        ("channel", None, "backend", None),
        ("marker", None, None, None),
        ("body", None, None, None),
    ]
    assert UNKNOWN not in view.events


def test_a_branch_keeps_what_stood_there_when_its_token_was_written() -> None:
    opening, header, words = FINAL[:1], FINAL[1:], script_ids("one two three")
    view, _ = viewed(
        [
            TurnStarted(1, tuple(opening)),
            Tokens(tuple(header)),
            Repair(len(header), "second_answer"),
            Tokens((*header, *words)),
            TurnEnded(FinishReason.STOP, 7),
            TurnStarted(0),
            Tokens(tuple(FINAL)),
        ]
    )
    first, voided, behind = view.branch(0), view.branch(2), view.branch(1 + len(header))
    # Behind the prefill, and up to the repair: what came next was not written behind it.
    assert (first.at, first.kept, first.part, first.rest) == (1, opening, "channel", range(1, 3))
    assert (voided.kept, voided.rest) == (FINAL[:2], range(2, 3))
    assert (behind.kept, len(behind.rest)) == (opening, len(header) + len(words))
    assert (voided.voided, behind.voided) == (0, len(header))
    last = view.branch(len(view) - len(FINAL))
    assert (last.turn, last.kept, last.part) == (1, [], "role")
    assert view.taken_back(0) == [{"rule": "second_answer", "tokens": header}]
    assert (view.taken_back(1), view.cached_tokens) == ([], 7)
    for nowhere in (len(view), 99):
        with pytest.raises(IndexError):
            view.branch(nowhere)
    assert new_view().branch(0).kept == []
    body = view.branch(1 + 2 * len(header))
    assert (body.kept, body.part) == (FINAL, "body")
    grown = view.grown(body, script_ids(" no"), script_ids(" sea<|return|>"))
    assert [(run["part"], run.get("prefill")) for run in grown.page(-1, 9)] == [
        ("body", True),
        ("body", None),
        ("marker", None),
    ]


def test_likelihoods_stand_beside_their_tokens() -> None:
    told = TokenLogprob(-0.25, ((1, -0.25),))
    view, _ = viewed([TurnStarted(1), Tokens(tuple(FINAL), (told,) * len(FINAL))])
    assert view.page(-1, 1)[0]["tokens"] == [[FINAL[0], "<|channel|>", 1, None, -0.25]]


def test_parts_of_characters_are_shown_as_bytes() -> None:
    view, _ = viewed([TurnStarted(1), Tokens((harmony().vocabulary.byte_ids[0x80],))])
    assert view.page(-1, 1)[0]["tokens"][0][1] == {"hex": "80"}


def test_of_a_response_without_a_log_the_ids_of_its_items_are_left() -> None:
    view = TokenView(harmony())
    view.add_item(0, [*NEXT, *THOUGHT])
    view.add_item(1, ())
    view.add_item(2, [*NEXT, *FINAL])
    runs = view.page(-1, 99)
    assert [run["item"] for run in runs if run["part"] == "role"] == [0, 2]
    assert all(token[2:] == [None, None] for run in runs for token in run["tokens"])


def test_text_in_the_middle_of_a_character_goes_into_the_event_that_ends_it() -> None:
    smile = script_ids("\N{MELTING FACE}" * 2)
    assert len(smile) > 2
    log: list[Entry] = [
        TurnStarted(1),
        *(Tokens((token,)) for token in (*FINAL, *script_ids("a b c"), *smile)),
    ]
    view, events = viewed(log)
    last = events[-1].sequence_number
    assert view.events[-1] == last
    assert list(view.events[-len(smile) :]).count(last) == len(smile) // 2


def test_arguments_that_are_shown_otherwise_than_written_go_into_the_last_event_of_theirs() -> None:
    log: list[Entry] = [TurnStarted(1), *(Tokens((token,)) for token in script_ids(CALL))]
    view, events = viewed(log)
    assert UNKNOWN not in view.events
    assert set(view.events) <= {event.sequence_number for event in events}
