"""What a server holds that nobody has asked for anything yet."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NOT_NEEDED_YET = [
    "alembic",
    "cryptography",
    "jinja2",
    "jsonschema_rs",
    "llguidance",
    "openai",
    "openai_harmony",
    "opentelemetry",
    "pypdf",
    "rich",
    "selectolax",
    "structlog",
]
"""Each is some megabytes."""
NOT_FOR_SERVING = ["gateway.admin", "gateway.console.page", "gateway.devdb", "gateway.simulator"]
"""The admin API, which is off unless a setting says otherwise; what is there to try the gateway."""
OF_THE_LIST = {
    "gateway.__main__",
    "gateway.cli",
    "gateway.cli.commands",
    "gateway.cli.terminal",
    "gateway.errors",
    "gateway.json_output",
    "gateway.telemetry",
    "gateway.telemetry.logs",
    "gateway.telemetry.trace_context",
}
"""What `--version` and `--help` need of this package."""
HEAVY = {
    *(set(NOT_NEEDED_YET) - {"rich"}), "asyncpg", "httpx2", "pydantic", "starlette", "uvicorn",
    "uvloop", "yaml",
}  # fmt: skip
NAMES = [*NOT_NEEDED_YET, *NOT_FOR_SERVING]


def imported_after(statements: str, printed: list[str] | None = None) -> set[str]:
    """Which of them a new Python has imported after these statements, whose lines are `printed`."""
    program = (
        f"{statements}\nimport json, sys\n"
        f"print(json.dumps([name for name in {NAMES} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    *lines, names = done.stdout.decode().splitlines()
    if printed is not None:
        printed += lines
    return set(json.loads(names))


@pytest.mark.slow
def test_a_server_holds_no_library_that_nothing_needs_yet() -> None:
    assert imported_after("import gateway.cli.serve") == set()


@pytest.mark.slow
def test_the_version_and_the_list_of_commands_need_no_command() -> None:
    for option in ("--version", "--help"):
        lines: list[str] = []
        imported_after(
            "import sys\nfrom gateway.__main__ import main\n"
            f"sys.argv[1:] = ['{option}']\n"
            "try: main()\nexcept SystemExit: pass\n"
            "print(' '.join(name for name in sys.modules))",
            printed=lines,
        )
        modules = set(lines[-1].split())
        assert modules >= {"gateway.cli.commands", "typer"}
        assert {name for name in modules if name.startswith("gateway.")} <= OF_THE_LIST
        assert {name.partition(".")[0] for name in modules} & HEAVY == set()


@pytest.mark.slow
def test_web_search_holds_no_library_before_a_page_is_read() -> None:
    assert imported_after("import gateway.wiring.web") == set()


@pytest.mark.slow
def test_what_only_some_requests_need_is_read_from_the_disk_but_not_imported() -> None:
    read: list[str] = []
    loaded = imported_after(
        "import asyncio, os\n"
        "os.posix_fadvise = lambda file, *_: print(os.readlink(f'/proc/self/fd/{file}'))\n"
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
        "asyncio.run(live())",
        printed=read,
    )
    assert loaded == set()
    folders = {name for name in NOT_NEEDED_YET for path in read if f"/{name}/" in path}
    assert folders == {"cryptography", "jsonschema_rs", "llguidance"}
