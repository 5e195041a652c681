"""`harmony-gateway` and `python -m gateway`."""

from __future__ import annotations

from gateway.cli.commands import commands
from gateway.cli.terminal import told_plainly


def main() -> None:
    with told_plainly():
        commands(prog_name="harmony-gateway")


if __name__ == "__main__":
    main()
