"""curl: what a shell script and a proxy see of the wire."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.event_grammar import check_stream
from tests.fakes.stream import as_events, parse_stream

if TYPE_CHECKING:
    from tests.fakes.processes import GatewayProcess

CURL = shutil.which("curl")
BODY = {"model": "gpt-oss-20b", "input": "Hello there"}
STATUS = "\n%{http_code} %{http_version} %{num_connects} %{content_type}\n"

pytestmark = pytest.mark.skipif(CURL is None, reason="curl is not installed")


def curl(*arguments: str) -> str:
    """What it prints; fails with what it complains about."""
    assert CURL is not None
    done = subprocess.run(
        [CURL, "--silent", "--show-error", "--noproxy", "*", "--max-time", "30", *arguments],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def posted(key: str, body: dict[str, Any]) -> list[str]:
    """The arguments of a POST."""
    headers = [f"Authorization: Bearer {key}", "Content-Type: application/json"]
    return [*(one for header in headers for one in ("-H", header)), "-d", json.dumps(body)]


@pytest.fixture
def url(gateway: GatewayProcess) -> str:
    return f"{gateway.base_url}/responses"


def test_a_body_is_json_over_http_1_1(url: str, key: str) -> None:
    body, status = curl("-w", STATUS, *posted(key, BODY), url).rstrip("\n").rsplit("\n", 1)
    assert status.split() == ["200", "1.1", "1", "application/json"]
    assert json.loads(body)["status"] == "completed"


def test_a_stream_is_events_and_the_end_mark(url: str, key: str) -> None:
    printed = curl("-N", *posted(key, {**BODY, "stream": True}), url)
    check_stream(as_events(parse_stream(printed)))


def test_an_error_has_the_envelope(url: str, key: str) -> None:
    printed = curl("-w", STATUS, *posted(key, {**BODY, "model": "gpt-9"}), url)
    body, status = printed.rstrip("\n").rsplit("\n", 1)
    assert status.split()[0] == "404"
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_connection_is_used_again(url: str, key: str, streamed: bool) -> None:
    request = ["-o", "/dev/null", "-w", STATUS, *posted(key, {**BODY, "stream": streamed}), url]
    lines = curl(*request, "--next", "--silent", *request).split("\n")
    assert [line.split()[:3] for line in lines if line] == [
        ["200", "1.1", "1"],
        ["200", "1.1", "0"],
    ]
