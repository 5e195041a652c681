"""`harmony-gateway` and `python -m gateway`."""

from __future__ import annotations

import os
import signal
import sys

STDERR_FILENO = 2


def main() -> None:
    # libuv ends a process in which a socket gets the number of a standard stream that was closed.
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= STDERR_FILENO:
        pass
    os.close(lowest)
    # A server that has not read its configuration has nothing to read again: SIGHUP, which would
    # end it, is ignored until `serve` listens for it. So this comes before the imports.
    if "serve" in sys.argv[1:]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # During imports an interrupt may become another error, of a class that is being created, say:
    # until a command runs it ends the process, with 130 for a shell.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway.cli.commands import commands
    from gateway.cli.terminal import report_errors

    try:
        with report_errors():
            commands(prog_name="harmony-gateway")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
