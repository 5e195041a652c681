"""The server of `compose.yaml` beside this file: `python -m tests.deploy.backend`."""

from __future__ import annotations

import uvicorn

from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if __name__ == "__main__":
    app = create_simulator(WaywardOptions())
    uvicorn.run(app, host="0.0.0.0", port=8100, log_level="warning", loop="uvloop")
