"""Citation markers: told apart from text, however it was cut."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.eventlog.fold.citations import (
    CITATIONS_MAX,
    CLOSING,
    DAGGER,
    LINK_CHARS_MAX,
    MARKER_CHARS_MAX,
    OPENING,
    Citation,
    CitationReader,
    CitedAnswer,
    CitedText,
    ContainerFiles,
    Pages,
)
from gateway.protocol.grants import CITED_FILES_MAX, ShownPage
from tests.fakes.cases import each

ALPHABET = st.sampled_from([*"012 L-a\n重", OPENING, CLOSING, DAGGER])
HOSTILE = st.text(ALPHABET, max_size=80)


def read(*parts: str) -> list[str | Citation]:
    """Pieces, those of text that follow on each other joined."""
    reader = CitationReader()
    pieces: list[str | Citation] = []
    for part in parts:
        pieces += reader.feed(part)
    pieces.append(reader.end())
    joined: list[str | Citation] = []
    for piece in pieces:
        if not piece:
            continue
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


@each(
    ("text", "pieces"),
    [
        ("It is so【3†L12-L15】.", ["It is so", Citation(3, (12, 15)), "."]),
        ("【0†L3】【1†L4】", [Citation(0, (3, 3)), Citation(1, (4, 4))]),
        ("【0†source】", [Citation(0)]),
        ("【12†L3-9】", [Citation(12, (3, 9))]),
        ("【12†3-L9】", [Citation(12, (3, 9))]),
        ("【1†L9-L3】", [Citation(1, (9, 9))]),
        ("【1†L1-L2, L5-L6】", [Citation(1, (1, 2))]),
        ("【1†a†b】", [Citation(1)]),
        ("【1†】", [Citation(1)]),
        ("【重要】お知らせ", ["【重要】お知らせ"]),
        ("【2026】", ["【2026】"]),
        ("【†L1】", ["【†L1】"]),
        ("【1234567†L1】", ["【1234567†L1】"]),
        ("【1†L1\n】", ["【1†L1\n】"]),
        ("【1【2†L1】", ["【1", Citation(2, (1, 1))]),
        ("【1†【2†L1】", ["【1†", Citation(2, (1, 1))]),
        ("cut off【1†L", ["cut off【1†L"]),
        (f"【1†{'x' * MARKER_CHARS_MAX}】", [f"【1†{'x' * MARKER_CHARS_MAX}】"]),
    ],
)
def test_markers(text: str, pieces: list[str | Citation]) -> None:
    assert read(text) == pieces
    assert read(*text) == pieces


@given(HOSTILE, st.lists(st.integers(0, 80), max_size=10))
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    assert read(*(text[a:b] for a, b in pairwise(edges))) == read(text)


@given(HOSTILE)
def test_all_but_markers_comes_out(text: str) -> None:
    plain = "".join(piece for piece in read(text) if isinstance(piece, str))
    left = iter(text)
    assert all(char in left for char in plain)
    if DAGGER not in text or OPENING not in text:
        assert plain == text


@given(HOSTILE)
def test_little_is_held_back(text: str) -> None:
    reader = CitationReader()
    for char in text:
        for piece in reader.feed(char):
            assert piece
        assert len(reader.held) < MARKER_CHARS_MAX
    assert reader.held == "" or reader.held.startswith(OPENING)


def page(cursor: int, url: str, title: str = "", *, of: int | None = None) -> ShownPage:
    return ShownPage(cursor, "key", "page" if of is None else "find", url, title, of=of)


PAGES = (
    page(0, "", "what was searched for"),
    page(1, "https://a.example/x", "One"),
    page(2, "", "found", of=1),
    page(3, "", "found", of=0),
    page(4, "no address"),
)


def answer(*parts: str, links: bool = True, is_complete: bool = True) -> list[CitedText]:
    """Pieces of text joined, as far as they follow on each other."""
    reader = CitedAnswer(Pages(PAGES), ContainerFiles(), links=links)
    pieces = [piece for part in parts for piece in reader.feed(part)]
    pieces += reader.end(is_complete=is_complete)
    joined: list[CitedText] = []
    for piece in pieces:
        if joined and joined[-1].annotation is piece.annotation is None:
            joined[-1] = CitedText(joined[-1].text + piece.text)
        elif piece.text:
            joined.append(piece)
    return joined


def url_citation(start: int, end: int) -> dict[str, object]:
    return {
        "type": "url_citation",
        "title": "One",
        "url": "https://a.example/x",
        "start_index": start,
        "end_index": end,
    }


LINK = "([One](https://a.example/x))"


def test_a_marker_becomes_a_link_and_an_annotation_of_it() -> None:
    size = len(LINK)
    assert answer("\U0001f600a【1†L1】【2†L1-L2】.") == [
        CitedText("\U0001f600a"),
        CitedText(LINK, url_citation(2, 2 + size)),
        CitedText(LINK, url_citation(2 + size, 2 + 2 * size)),
        CitedText("."),
    ]


@pytest.mark.parametrize("cursor", [0, 3, 4, 5])
def test_a_marker_of_nothing_with_an_address_vanishes(cursor: int) -> None:
    assert answer(f"a【{cursor}†L1】b") == [CitedText("ab")]


@pytest.mark.parametrize(
    ("lines", "title"),
    [("L2", "A"), ("L3-L9", "A"), ("L6", "B"), ("L0-L4", "A"), ("L0-L1", None), ("x", None)],
)
def test_a_result_of_a_search_is_cited_by_its_lines(lines: str, title: str | None) -> None:
    links = ("https://a.example", "https://b.example", "https://c.example")
    found = ShownPage(7, "k", "search", "", "q", links=links, hits=((2, "A"), (6, "B")))
    pieces = CitedAnswer(Pages([found]), ContainerFiles()).feed(f"【7†{lines}】")
    assert [one["title"] for piece in pieces if (one := piece.annotation)] == [title] * bool(title)
    assert all(piece.text.startswith(f"([{title}](https://") for piece in pieces)


def test_where_no_link_may_be_a_marker_vanishes() -> None:
    assert answer("a【1†L1】b", links=False) == [CitedText("ab")]


@pytest.mark.parametrize(
    ("text", "whole", "cut"),
    [("a【1†L", "a", "a"), ("a【1", "a【1", "a"), ("a【", "a【", "a"), ("a", "a", "a")],
)
def test_what_an_answer_ends_with_is_text_or_half_a_marker(text: str, whole: str, cut: str) -> None:
    assert answer(text) == [CitedText(whole)]
    assert answer(text, is_complete=False) == [CitedText(cut)]


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("", "b.example:80"),
        (" \n", "b.example:80"),
        ("[]", "b.example:80"),
        ("a](https://evil.example) [b", "a (https://evil.example) b"),
        ("Set (mathematics)", "Set (mathematics)"),
        ("<b>`x`\\\\【y】", "b x y"),
        ("x" * 99, "x" * LINK_CHARS_MAX),
    ],
)
def test_the_text_of_a_link_is_text(title: str, words: str) -> None:
    reader = CitedAnswer(
        Pages([page(7, "https://me@b.example:80/p (1)?q=ü", title)]), ContainerFiles()
    )
    [piece] = reader.feed("【7†L1】")
    assert piece.text == f"([{words}](https://me@b.example:80/p%20%281%29?q=%C3%BC))"
    assert piece.annotation is not None
    assert piece.annotation["url"] == "https://me@b.example:80/p (1)?q=ü"
    assert piece.annotation["title"] == " ".join(title.split()) or "b.example:80"


def test_an_address_without_a_host_is_its_own_name() -> None:
    [piece] = CitedAnswer(Pages([page(7, "file:///a")]), ContainerFiles()).feed("【7†L1】")
    assert piece.text == "([file:///a](file:///a))"


def test_a_page_that_is_shown_again_is_the_last() -> None:
    pages = Pages(PAGES)
    pages.add(page(1, "https://b.example"))
    assert [one.cursor for one in pages] == [0, 2, 3, 4, 1]


@pytest.mark.slow
@given(HOSTILE, st.data())
def test_links_and_offsets_do_not_depend_on_the_cut(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    pieces = answer(*parts)
    assert pieces == answer(text) == answer(*text)
    shown = "".join(piece.text for piece in pieces)
    for piece in pieces:
        if piece.annotation is not None:
            assert shown[piece.annotation["start_index"] : piece.annotation["end_index"]] == LINK


def test_an_answer_has_so_many_links_at_most() -> None:
    reader = CitedAnswer(Pages([page(7, "https://b.example/", "B")]), None)
    pieces = reader.feed("【7†L1】" * (CITATIONS_MAX + 1) + "end")
    assert len([piece for piece in pieces if piece.annotation]) == CITATIONS_MAX
    assert (pieces[-1].text, reader.unresolved) == ("end", 1)


def files(*paths: str) -> ContainerFiles:
    known = ContainerFiles()
    known.put("cntr_1", {path: f"cfile_{at}" for at, path in enumerate(paths)})
    return known


FILES = files("/mnt/data/a.csv", "/mnt/data/a.csv.gz", "/mnt/data/sub/s", "/mnt/data/a b")


def noted(*parts: str, pages: Pages | None = None, is_complete: bool = True) -> list[CitedText]:
    reader = CitedAnswer(pages, FILES)
    pieces = [piece for part in parts for piece in reader.feed(part)]
    return joined([*pieces, *reader.end(is_complete=is_complete)])


def joined(pieces: list[CitedText]) -> list[CitedText]:
    whole: list[CitedText] = []
    for piece in pieces:
        if whole and whole[-1].annotation is piece.annotation is None:
            whole[-1] = CitedText(whole[-1].text + piece.text)
        else:
            whole.append(piece)
    return whole


@each(
    ("text", "found"),
    [
        ("See /mnt/data/a.csv.", ["/mnt/data/a.csv"]),
        ("[x](sandbox:/mnt/data/a.csv.gz)", ["sandbox:/mnt/data/a.csv.gz"]),
        ("/mnt/data/a.csv/mnt/data/a.csv", ["/mnt/data/a.csv"]),
        ("/mnt/data/a.csv.g", ["/mnt/data/a.csv"]),
        ("/mnt/data/a.csv2 /mnt/data/a.csv_ /mnt/data/b.csv", []),
        ("/mnt/data/sub/s /mnt/data/a b", ["/mnt/data/sub/s", "/mnt/data/a b"]),
        ("/mnt/data/su", []),
        ("sandbox:/mnt/data/sub/", []),
        ("/mnt/data/a.csv【1†L1】/mnt/data/a.csv", ["/mnt/data/a.csv"] * 2),
        ("/mnt/data/a【9†L1】.csv", []),
    ],
)
def test_paths_of_files_are_noted_where_they_stand(text: str, found: list[str]) -> None:
    for parts in ((text,), tuple(text)):
        pieces = noted(*parts, pages=Pages(PAGES))
        shown = "".join(piece.text for piece in pieces)
        told = [one for piece in pieces if (one := piece.annotation) and "file_id" in one]
        assert [shown[one["start_index"] : one["end_index"]] for one in told] == found


def test_the_annotation_of_a_file() -> None:
    [piece] = noted("sandbox:/mnt/data/sub/s")
    assert piece.annotation == {
        "type": "container_file_citation",
        "container_id": "cntr_1",
        "file_id": "cfile_2",
        "filename": "s",
        "start_index": 0,
        "end_index": 23,
    }


def test_without_a_browser_a_marker_stays_beside_a_file() -> None:
    pieces = noted("【1†L1】 /mnt/data/a.csv")
    assert [piece.text for piece in pieces] == ["【1†L1】 ", "/mnt/data/a.csv"]


def test_the_front_of_a_path_is_text_also_where_the_answer_was_cut_off() -> None:
    assert noted("a /mnt/da", is_complete=False) == [CitedText("a /mnt/da")]
    assert noted("a /mnt/da【1†", pages=Pages(PAGES), is_complete=False) == [CitedText("a /mnt/da")]


def test_many_files_with_long_paths_take_little_memory() -> None:
    named = {f"/mnt/data/{at:03}{'x' * 490}": f"cfile_{at}" for at in range(CITED_FILES_MAX)}
    tracemalloc.start()
    try:
        known = ContainerFiles()
        known.put("cntr_1", named)
        CitedAnswer(None, known).feed("See /mnt/data/000x")
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()


def test_of_too_many_files_the_last_are_known() -> None:
    known = files(*(f"/mnt/data/{at}" for at in range(CITED_FILES_MAX + 1)))
    assert known.find("/mnt/data/0 ", 0) is None
    assert known.find(f"/mnt/data/{CITED_FILES_MAX}", 0)


@pytest.mark.slow
@given(
    st.lists(
        st.sampled_from(
            [
                "/mnt/data/a.csv",
                ".gz",
                "sandbox:",
                "/mnt",
                "/data/",
                "a",
                " b",
                "【1†L1】",
                "/",
                "s",
            ]
        ),
        max_size=9,
    ).map("".join),
    st.data(),
)
def test_paths_do_not_depend_on_the_cut(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    pages = Pages(PAGES)
    assert noted(*parts, pages=pages) == noted(text, pages=pages) == noted(*text, pages=pages)
