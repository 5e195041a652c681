"""What gVisor is given, whether or not it is installed here."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gateway.tools.python.container_engine import ContainerLimits
from gateway.tools.python.gvisor import OVERHEAD_BYTES, Bundle


def test_a_bundle_has_the_worker_and_what_it_needs_and_nothing_else() -> None:
    paths = ("/usr/lib", "/etc/hostname", "/no/such/path")
    limits = ContainerLimits()
    bundle = Bundle.made(["python", "worker.py"], paths, {"A": "b"}, limits, None)
    try:
        described = json.loads((bundle.folder / "config.json").read_bytes())
        process = described["process"]
        assert (process["args"], process["env"]) == (["python", "worker.py"], ["A=b"])
        assert process["user"]["uid"] != 0
        assert process["noNewPrivileges"] is True
        assert process["capabilities"] == {}
        assert described["root"]["readonly"] is True
        bound = {
            mount["destination"]: mount["options"]
            for mount in described["mounts"]
            if mount["type"] == "bind"
        }
        assert bound.keys() == {path for path in paths if os.path.exists(path)}
        assert all("ro" in options for options in bound.values())
        for mount in described["mounts"]:
            place = bundle.folder / "root" / mount["destination"].lstrip("/")
            assert place.is_file() == Path(mount["destination"]).is_file()
            assert place.exists()
        command = bundle.command("/usr/bin/runsc")
        assert "--network=none" in command
        assert "--rootless" in command
        assert command[-1] == bundle.name
        around = Bundle.around(limits)
        assert around.memory_bytes == limits.memory_bytes + OVERHEAD_BYTES
    finally:
        bundle.remove()
    assert not bundle.folder.exists()
