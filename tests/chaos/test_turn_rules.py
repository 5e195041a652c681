"""The checker of conversations finds nothing in the truth, and every lie that is put into it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from gateway import ids
from tests.chaos.history import Transcript
from tests.chaos.prompts import SUMMARY, Prompts, Said, shown_for, shown_in
from tests.chaos.talkers import Deed, Heard, Listing, Telling, Turn
from tests.chaos.turn_rules import compare, replay
from tests.chaos.witness import Note, Witnessed
from tests.fakes.simulated_conversation import answered, prompt_of, system, thought, user

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from tests.chaos.witness import Item

AT: Final = datetime(2026, 11, 21, tzinfo=UTC)
CONVERSATION, FIRST, SECOND = ids.new_uuid(), ids.new_uuid(), ids.new_uuid()
NAME: Final = ids.conversation_id(CONVERSATION)


def message(item_id: str, role: str, text: str) -> Item:
    return {"type": "message", "id": item_id, "role": role, "content": [{"text": text}]}


def turn(say: str) -> Turn:
    return Turn(NAME, say, "foreground", "none", True, None, tokens_per_s=10)


TURNS: Final = {FIRST: turn("one"), SECOND: turn("two")}
OWN: Final = {
    response: [
        message(f"msg_{one.say}_asked", "user", one.text),
        {"type": "reasoning", "id": f"rs_{one.say}"},
        message(f"msg_{one.say}", "assistant", one.say),
    ]
    for response, one in TURNS.items()
}
NOTE: Final = message("msg_note", "user", "by hand")


def note(transaction: int, kind: str, **fields: Any) -> Note:
    return Note(AT, str(transaction), kind, CONVERSATION)._replace(**fields)


def taken(transaction: int, response: UUID) -> Note:
    return note(transaction, "taken", response=response)


def ended(transaction: int, response: UUID, start: int, status: str = "completed") -> list[Note]:
    """The end of a response, and its items in any order."""
    items = OWN[response] if status == "completed" else []
    added = [
        note(transaction, "added", position=start + place, item=item)
        for place, item in enumerate(items)
    ]
    return [note(transaction, "ended", response=response, status=status), *reversed(added)]


def true_notes() -> list[Note]:
    """A turn, an item by hand, the item that answered is erased, another turn."""
    return [
        taken(1, FIRST),
        *ended(2, FIRST, 1),
        note(3, "added", position=4, item=NOTE),
        note(4, "erased", position=3, item=OWN[FIRST][2]),
        taken(5, SECOND),
        *ended(6, SECOND, 7),
    ]


STATE: Final = [*OWN[FIRST][:2], NOTE]
"""What the second turn found."""


def witnessed(notes: list[Note], items: list[Item] | None = None) -> Witnessed:
    left = [*STATE, *OWN[SECOND]] if items is None else items
    return Witnessed(notes, {CONVERSATION: left}, OWN)


def true_prompts() -> Prompts:
    first, second = OWN[FIRST][0], OWN[SECOND][0]
    shown = {FIRST: [shown_for([first])], SECOND: [shown_for([*STATE, second])] * 2}
    return Prompts(shown, frozenset())


def told(response: UUID, status: str = "completed") -> Telling:
    name = ids.response_id(response)
    transcript = Transcript(TURNS[response], True, name)
    return Telling(TURNS[response], transcript, {"status": status, "output": OWN[response][1:]})


def true_heard() -> Heard:
    return Heard(
        [told(FIRST), told(SECOND)],
        [Listing(NAME, ("msg_one", "rs_one", "msg_one_asked"), ids.response_id(FIRST))],
        [Deed("added", NAME, ("msg_note",)), Deed("erased", NAME, ("msg_one",))],
    )


def rules(
    notes: list[Note] | None = None,
    prompts: Prompts | None = None,
    heard: Heard | None = None,
    items: list[Item] | None = None,
) -> set[str]:
    """Which rules are broken by the truth, but for what is given."""
    seen = witnessed(true_notes() if notes is None else notes, items)
    replayed = replay(seen)
    found = compare(replayed, seen, prompts or true_prompts(), heard or true_heard())
    return {one.rule for one in [*replayed.anomalies, *found]}


def test_the_truth_breaks_no_rule() -> None:
    assert rules() == set()


def _second_writer(notes: list[Note]) -> None:
    notes.insert(1, taken(9, SECOND))


def _by_hand_while_locked(notes: list[Note]) -> None:
    notes.insert(1, note(9, "added", position=0, item=message("msg_other", "user", "hello")))


def _item_missing(notes: list[Note]) -> None:
    del notes[2]


def _items_again(notes: list[Note]) -> None:
    notes += [one._replace(transaction="9") for one in ended(9, SECOND, 20)]


def _items_of_a_failure(notes: list[Note]) -> None:
    notes[1] = notes[1]._replace(status="failed")


def _gap(notes: list[Note]) -> None:
    notes[2] = notes[2]._replace(position=30)


def _never_ended(notes: list[Note]) -> None:
    del notes[8:]


@pytest.mark.parametrize(
    ("lie", "rule"),
    [
        (_second_writer, "writer"),
        (_by_hand_while_locked, "writer"),
        (_item_missing, "once"),
        (_items_again, "once"),
        (_items_of_a_failure, "once"),
        (_gap, "order"),
        (_never_ended, "writer"),
    ],
)
def test_a_wrong_course_is_seen(lie: Callable[[list[Note]], None], rule: str) -> None:
    notes = true_notes()
    lie(notes)
    assert rule in rules(notes)


def test_rows_that_are_not_what_became_of_it_are_seen() -> None:
    assert rules(items=[*OWN[SECOND]]) == {"final"}


def test_a_prompt_of_an_older_conversation_is_seen() -> None:
    older = shown_for([*OWN[FIRST], OWN[SECOND][0]])
    prompts = true_prompts()
    stale = Prompts({**prompts.of_responses, SECOND: [older]}, frozenset())
    assert rules(prompts=stale) == {"prompt"}
    assert rules(prompts=Prompts({FIRST: prompts.of_responses[FIRST]}, frozenset())) == {"prompt"}


def test_a_client_that_was_told_something_else_is_seen() -> None:
    heard = true_heard()
    assert rules(heard=replace(heard, tellings=[told(FIRST, "failed"), told(SECOND)])) == {"kept"}
    wrong = Telling(turn("three"), told(FIRST).transcript, told(FIRST).told)
    assert "answer" in rules(heard=replace(heard, tellings=[*heard.tellings, wrong]))


def test_a_listing_of_what_never_was_is_seen() -> None:
    early = Listing(NAME, (), ids.response_id(FIRST))
    strange = Listing(NAME, ("msg_note", "msg_one_asked"))
    for listing in (early, strange):
        assert rules(heard=replace(true_heard(), listings=[listing])) == {"listed"}


def test_a_deed_that_was_not_done_is_seen() -> None:
    lost = Deed("added", NAME, ("msg_lost",))
    assert rules(heard=replace(true_heard(), deeds=[lost])) == {"kept"}


def test_prompts_are_read_up_to_the_question() -> None:
    prompt = prompt_of(system(), user("a"), thought("hm"), answered("b"), user("c"), thought("so"))
    assert shown_in(prompt) == (Said("user", "a"), Said("answer", "b"), Said("user", "c"))


def test_of_what_was_compacted_questions_are_left() -> None:
    items = [
        message("1", "user", "a"),
        message("2", "assistant", "b"),
        message("3", "user", "c"),
        {"type": "compaction", "id": "4"},
        message("5", "user", "d"),
    ]
    by_user = [Said("user", text) for text in "acd"]
    assert shown_for(items) == (by_user[0], SUMMARY, *by_user[1:])
