"""A task whose first step is taken at once, and not in the next round of the loop.

Between two rounds the loop reads whatever has come: among many streams that may be a burst of
tokens, and what could have been sent at once waits behind all of it. Python 3.12 can do this
(`eager_start`), 3.11 cannot. This does it for both, with the functions that asyncio documents for
those who make tasks of their own (Extending asyncio, task lifetime support).
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from types import TracebackType


def start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task for `work`, which has come to where it waits for something, or to its end.

    It does not tell from any other task: what the first step raised comes out of the task.
    """
    loop = asyncio.get_running_loop()
    begun, context = _Begun(work), copy_context()
    task = loop.create_task(begun, context=context)
    caller = asyncio.current_task(loop)
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        context.run(begun.begin)
    finally:
        _leave_task(loop, task)
        if caller is not None:
            _enter_task(loop, caller)
    return task


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine from its first wait on: what it waits for then is told once more."""

    __slots__ = ("_error", "_is_told", "_waited_for", "_work")

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self._is_told = False
        self._waited_for: Any = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        try:
            self._waited_for = self._work.send(None)
        except BaseException as error:  # noqa: BLE001 - the task raises it, the end included
            self._error = error

    @override
    def send(self, value: Any, /) -> Any:
        if self._is_told:
            return self._work.send(value)
        self._is_told = True
        if self._error is not None:
            raise self._taken_error()
        waited_for, self._waited_for = self._waited_for, None
        return waited_for

    def _taken_error(self) -> BaseException:
        """Once: it refers to the frames that it came through, and those to this."""
        error, self._error = self._error, None
        assert error is not None, "there is one"
        return error

    @override
    def throw(
        self,
        typ: Any,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> Any:
        """Only ever because the task is cancelled; perhaps before it has told what it waits for."""
        waited_for, self._waited_for = self._waited_for, None
        self._is_told = True
        if self._error is not None:
            raise self._taken_error()
        if waited_for is not None:
            waited_for.cancel()
        return self._work.throw(typ)

    @override
    def close(self) -> None:
        self._work.close()

    @override
    def __await__(self) -> Any:
        raise TypeError("only a task goes on with it")

    def __getattr__(self, name: str) -> Any:
        """Its name, its frame and its state are those of the work."""
        return getattr(self._work, name)
