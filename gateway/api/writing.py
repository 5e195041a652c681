"""Writing without waiting: a `send` that has nothing to wait for needs no task of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.api.connection import connection_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    from starlette.types import Scope

    from gateway.api.connection import WritePart


def part_writer(scope: Scope) -> WritePart:
    """`Connection.write_part` of a request; with a server that has none, all is sent."""
    connection = connection_of(scope)
    return _cannot if connection is None else connection.write_part


def _cannot(_part: bytes) -> bool:
    return False


def offers_parts(write: WritePart) -> bool:
    """Whether a server offered this: what it does not take, its client has to make room for."""
    return write is not _cannot


def begin(sending: Awaitable[None]) -> Rest | None:
    """Do as much of it as can be done now, wherever this is called from.

    Returns None when that was all, otherwise the rest, which is to be awaited in a task. Raises
    what `sending` raises. A server's `send` waits only while the client's buffer is full, so nearly
    always all of it is done in the call that made the bytes, and nobody has to wake up for it.
    """
    steps = sending.__await__()
    try:
        waited_for = next(steps)
    except StopIteration:
        return None
    return Rest(waited_for, steps)


class Rest:
    """A coroutine from its first wait on."""

    __slots__ = ("_steps", "_waited_for")

    def __init__(self, waited_for: Any, steps: Generator[Any, Any, None]) -> None:
        self._waited_for = waited_for
        self._steps = steps

    def close(self) -> None:
        """Leave it at that."""
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, None]:
        try:
            yield self._waited_for
        except BaseException:
            self._steps.close()
            raise
        yield from self._steps


class Later:
    """A coroutine that is made when it is awaited: nobody has to close one that is not."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work().__await__()
