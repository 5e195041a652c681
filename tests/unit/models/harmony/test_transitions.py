from __future__ import annotations

from gateway.generation import Where
from gateway.models.harmony.parsing import CLASSES, Parser, TokenClass

TABLE = Parser.STEPS


def test_every_state_knows_every_class_of_id() -> None:
    """In the order of the members: a row that lacks one shows."""
    assert [*TABLE] == [*Where]
    assert all([*row] == [*TokenClass] for row in TABLE.values())


def test_nothing_leads_out_of_a_turn_that_is_over() -> None:
    assert len(set(TABLE[Where.OVER].values())) == 1
    assert {after for _, after in TABLE[Where.OVER].values()} == {Where.OVER}


def test_text_and_ids_without_meaning_never_change_the_state() -> None:
    for state, row in TABLE.items():
        assert row[TokenClass.TEXT][1] is state
        assert row[TokenClass.VOID][1] is state


def test_every_marker_has_a_class_of_its_own_kind() -> None:
    assert set(CLASSES.values()) == set(TokenClass) - {TokenClass.TEXT, TokenClass.VOID}
