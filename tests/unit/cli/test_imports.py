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
NOT_FOR_SERVING = ["gateway.devdb", "gateway.simulator"]
"""A backend and a database to try the gateway with."""
NAMES = [*NOT_NEEDED_YET, *NOT_FOR_SERVING]


def imported_after(statements: str) -> set[str]:
    """Which of them a new Python has imported after these statements."""
    program = (
        f"{statements}\nimport json, sys\n"
        f"print(json.dumps([name for name in {NAMES} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(json.loads(done.stdout))


def test_a_server_holds_no_library_that_nothing_needs_yet() -> None:
    assert imported_after("import gateway.cli.commands") == set()


def test_what_requests_will_need_is_imported_before_the_first_of_them() -> None:
    loaded = imported_after(
        "import asyncio\n"
        "from gateway.wiring.process import Process\n"
        "from gateway.settings import Settings\n"
        "settings = Settings(\n"
        "    database={'url': 'postgresql://u@127.0.0.1:9/d'},\n"
        "    auth={'key_pepper': 'a pepper of more than sixteen characters'},\n"
        "    log={'level': 'error'},\n"
        ")\n"
        "async def live():\n"
        "    async with Process.of(settings).running():\n"
        "        pass\n"
        "asyncio.run(live())"
    )
    assert loaded >= {"cryptography", "jsonschema_rs", "llguidance"}
    assert not loaded & {"alembic", "openai", "openai_harmony", "rich", "sqlalchemy"}
    assert not loaded & set(NOT_FOR_SERVING)
