"""A simulated backend as a process of its own.

`python -m tests.chaos.backend PORT OPTIONS JOURNAL`

OPTIONS is JSON with fields of `WaywardOptions`, all of which can be set here, unlike with
`harmony-gateway simulate`. What it is asked to complete is written to the file JOURNAL before it is
looked at, so that it outlives the process (`prompts`); without a third argument nothing is.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import uvicorn

from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Journaled:
    """An instance whose requests for completions are kept in a file, one in each line."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand it on, noting every body on its way."""
        if scope["type"] != "http" or scope["path"] != "/v1/completions":
            await self._app(scope, receive, send)
            return
        body = bytearray()

        async def overheard() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    os.write(self._file, bytes(body) + b"\n")
            return message

        await self._app(scope, overheard, send)


def main() -> None:
    """Serve until it is told to end, or killed."""
    port, options, *journal = sys.argv[1:]
    app = create_simulator(WaywardOptions(**json.loads(options)))
    for path in journal:
        app = Journaled(app, path)
    uvicorn.run(app, port=int(port), log_level="critical", loop="uvloop", timeout_keep_alive=60)


if __name__ == "__main__":
    main()
