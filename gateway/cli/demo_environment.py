"""`demo.env`: base URL and key of the demo, for OpenAI's clients and for `launch`.

It belongs to the demo that runs: another one beside it has a file of its own, named by its port,
while it runs.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BASE_URL: Final = "OPENAI_BASE_URL"
API_KEY: Final = "OPENAI_API_KEY"
_LINE: Final = re.compile(r"^export (\w+)=(\S+)$", re.MULTILINE)
_PRIVATE: Final = 0o600


def environment_file(data_dir: Path) -> Path:
    """Where it is, or would be."""
    return data_dir / "demo.env"


@contextmanager
def held(data_dir: Path, port: int, base_url: str, key: str) -> Iterator[Path]:
    """The file with these, for this user only, which no other demo overwrites while entered.

    The first one's stays, so that the next demo finds its key.
    """
    path = environment_file(data_dir)
    # Locked before it is emptied: it may be another's.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    is_first = _try_lock(descriptor)
    if not is_first:
        os.close(descriptor)
        path = data_dir / f"demo-{port}.env"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"export {BASE_URL}={base_url}\nexport {API_KEY}={key}\n".encode())
        yield path
    finally:
        os.close(descriptor)
        if not is_first:
            path.unlink(missing_ok=True)


def saved(data_dir: Path) -> dict[str, str]:
    """The variables in it; none where this user has no demo, or may not read it."""
    try:
        text = environment_file(data_dir).read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(_LINE.findall(text))


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
