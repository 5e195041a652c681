from __future__ import annotations

from gateway.models.harmony.transitions import CLASSES, TABLE, Action, State, Token


def test_every_state_knows_every_class_of_id() -> None:
    assert TABLE.keys() == set(State)
    assert all(row.keys() == set(Token) for row in TABLE.values())


def test_every_action_has_a_place_in_the_table() -> None:
    assert {action for row in TABLE.values() for action, _ in row.values()} == set(Action)


def test_nothing_leads_out_of_a_turn_that_is_over() -> None:
    assert set(TABLE[State.OVER].values()) == {(Action.IGNORE, State.OVER)}


def test_text_and_ids_without_meaning_never_change_the_state() -> None:
    for state, row in TABLE.items():
        assert row[Token.TEXT][1] is state
        assert row[Token.VOID][1] is state


def test_every_marker_has_a_class_of_its_own_kind() -> None:
    assert set(CLASSES.values()) == set(Token) - {Token.TEXT, Token.VOID}
