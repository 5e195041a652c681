"""Runs the checks of one client: orders come by stdin, answers go by stdout, one JSON line each.

An order is `{"check": name, "given": {…}}`; its answer `{"found": …}`, or `{"broke": traceback}`.
This runs in the client's environment, where nothing of ours is installed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

BASE_URL = os.environ["OPENAI_BASE_URL"]
API_KEY = os.environ["OPENAI_API_KEY"]
MODEL = os.environ["TEST_MODEL"]
SLOWLY = "[[sim tokens_per_s=400]] Hello there"
"""Slow enough that a stream has several parts."""


def answer(*checks: Callable[..., Any]) -> None:
    """Until stdin ends. What a client prints of its own goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    by_name = {check.__name__: check for check in checks}
    loop = asyncio.new_event_loop()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            found = by_name[order["check"]](**order["given"])
            if inspect.isawaitable(found):
                found = loop.run_until_complete(found)
            reply = {"found": found}
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            reply = {"broke": traceback.format_exc(limit=-4)}
        print(json.dumps(reply), file=answers, flush=True)
