"""The two logins that deploy/roles.sql makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gateway.devdb.embedded import bundled_programs
from tests.fakes.postgres import server_programs

ROLES = Path(__file__).parents[2] / "deploy" / "roles.sql"
OWNER, SERVING = "harmony_gateway_owner", "harmony_gateway"


def make_roles(url: str) -> None:
    """As an operator does it, with the password that tests use."""
    psql = (server_programs() or bundled_programs()) / "psql"
    passwords = ["-v", "owner_password=secret", "-v", "serving_password=secret"]
    command = [str(psql), "--no-psqlrc", "--quiet", *passwords, "-f", str(ROLES), url]
    subprocess.run(command, check=True, capture_output=True)
