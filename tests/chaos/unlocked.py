"""The gateway with the lock of conversations torn out: a test build that shows what it is for.

Whoever asks for a conversation takes it, whoever has it and whatever was done to it since it was
read. All else is the product: `python -m tests.chaos.unlocked` is `python -m gateway`.
"""

from __future__ import annotations

from typing import Final

from gateway.__main__ import main
from gateway.store import conversations
from gateway.store.postgres.statements import Statement

LOCK: Final = """EXISTS (
    SELECT FROM responses AS running
    WHERE running.tenant_id = conversations.tenant_id AND running.id = conversations.writer
      AND running.status IN ('queued', 'in_progress')
)"""
CONDITIONS: Final = (
    ("_INSERT_WRITER", f" AND next_position = :conversation_end\n      AND NOT {LOCK}", ""),
    (
        "_CONTENTS",
        "coalesce(writer.status IN ('queued', 'in_progress'), false) AS is_locked",
        "false AS is_locked",
    ),
)
"""Of which statement what is replaced by what."""


def tear_out() -> None:
    """Replace the product's own. Raises `AssertionError` when it is worded otherwise now."""
    for name, condition, other in CONDITIONS:
        statement: Statement = getattr(conversations, name)
        assert condition in statement.text, f"{name} has no {condition}"
        setattr(conversations, name, Statement(statement.text.replace(condition, other)))


if __name__ == "__main__":
    tear_out()
    main()
