"""What a server holds that nobody has asked for anything yet."""

from __future__ import annotations

import json
import subprocess
import sys

NOT_NEEDED_YET = [
    "alembic",
    "cryptography",
    "jsonschema_rs",
    "llguidance",
    "openai",
    "openai_harmony",
    "rich",
    "sqlalchemy",
    "structlog",
]
"""Each is some megabytes."""


def imported_after(statements: str) -> set[str]:
    """Which of them a new Python has imported after these statements."""
    program = (
        f"{statements}\nimport json, sys\n"
        f"print(json.dumps([name for name in {NOT_NEEDED_YET} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(json.loads(done.stdout))


def test_a_server_holds_no_library_that_nothing_needs_yet() -> None:
    assert imported_after("import gateway.cli.commands") == set()


def test_what_checks_is_imported_before_the_event_loop_would_wait_for_it() -> None:
    loaded = imported_after(
        "from gateway import checking\n"
        "assert not checking.is_loaded()\n"
        "checking.load()\n"
        "assert checking.is_loaded()"
    )
    assert loaded == {"jsonschema_rs", "llguidance"}


def test_what_seals_is_imported_before_the_event_loop_would_wait_for_it() -> None:
    loaded = imported_after(
        "from gateway import sealing\n"
        "assert not sealing.is_loaded()\n"
        "sealing.load()\n"
        "assert sealing.is_loaded()"
    )
    assert loaded == {"cryptography"}
