"""What a reader cannot see reaches the model from none of the rooms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.tools import result_text
from gateway.tools.browser import page
from gateway.tools.python import python_tool as text
from gateway.tools.result_text import without_unseen

if TYPE_CHECKING:
    from collections.abc import Callable

CONTROLS = [chr(code) for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))]
DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
MARKS = ["\u061c", "\u200e", "\u200f", "\ufeff"]
TAGS = [chr(code) for code in range(0xE0000, 0xE0080)]
HIDDEN = [*(set(CONTROLS) - {"\t", "\n"}), *DIRECTIONS, *MARKS, *TAGS]
SEEN = "Ünïcode 漢字 עברית 🙂 a\tb\nc~"


@pytest.mark.parametrize("plain", [without_unseen, page.plain, result_text.plain, text.plain])
def test_no_room_shows_what_is_not_seen(plain: Callable[[str], str]) -> None:
    for hidden in HIDDEN:
        assert hidden not in plain(f"an {hidden}order"), f"U+{ord(hidden):04X}"


@pytest.mark.parametrize("plain", [without_unseen, page.plain, result_text.plain, text.plain])
def test_what_is_seen_stays(plain: Callable[[str], str]) -> None:
    assert plain(SEEN) == SEEN
