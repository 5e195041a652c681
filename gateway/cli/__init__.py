from __future__ import annotations

import os
import signal
from typing import Final

INTERRUPTED: Final = 128 + signal.SIGINT


def exit_at_once(*_: object) -> None:
    # The handler of SIGINT during imports, where an exception may become another one: of a class
    # that is being created, say.
    os._exit(INTERRUPTED)
