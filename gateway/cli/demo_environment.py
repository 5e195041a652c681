"""`demo.env`: base URL and key of the demo, for OpenAI's clients and for `launch`.

Who holds the folder's database writes it, and it stays: the next demo finds its key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gateway.cli.provision import write_private

if TYPE_CHECKING:
    from pathlib import Path

BASE_URL: Final = "OPENAI_BASE_URL"
API_KEY: Final = "OPENAI_API_KEY"
_LINE: Final = re.compile(r"^export (\w+)=(\S+)$", re.MULTILINE)


def environment_file(data_dir: Path) -> Path:
    """Where it is, or would be."""
    return data_dir / "demo.env"


def write(data_dir: Path, base_url: str, key: str) -> Path:
    """The file with these, for this user only."""
    path = environment_file(data_dir)
    write_private(path, f"export {BASE_URL}={base_url}\nexport {API_KEY}={key}\n")
    return path


def saved(data_dir: Path) -> dict[str, str]:
    """The variables in it; none where this user has no demo, or may not read it."""
    try:
        text = environment_file(data_dir).read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(_LINE.findall(text))
