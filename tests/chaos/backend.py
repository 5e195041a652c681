"""A simulated backend as a process of its own: `python -m tests.chaos.backend PORT OPTIONS`.

OPTIONS is JSON with fields of `SimulatorOptions`, all of which can be set here, unlike with
`harmony-gateway simulate`. It is never asked to end, only killed.
"""

from __future__ import annotations

import json
import sys

import uvicorn

from gateway.simulator.app import create_simulator
from gateway.simulator.options import SimulatorOptions


def main() -> None:
    """Serve until killed."""
    port, options = sys.argv[1:]
    app = create_simulator(SimulatorOptions(**json.loads(options)))
    uvicorn.run(app, port=int(port), log_level="critical", loop="uvloop", timeout_keep_alive=60)


if __name__ == "__main__":
    main()
