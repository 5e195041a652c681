"""What the pages tell people to run does run: their Python, against real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fakes.processes import GatewayProcess

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TIME_MAX_S = 100


@pytest.mark.parametrize("page", ["README.md", "docs/use.md"])
def test_the_python_of_a_page_runs(
    page: str, gateway: GatewayProcess, key: str, tmp_path: Path
) -> None:
    """One block after the other, as a reader would."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(PYTHON.findall((ROOT / page).read_text(encoding="utf-8"))))
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"OPENAI_BASE_URL": gateway.base_url, "OPENAI_API_KEY": key},
        capture_output=True,
        text=True,
        timeout=TIME_MAX_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
