"""Work begins anew with what it lacked, and not for ever."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from gateway.errors import ContextLengthExceeded
from gateway.models.format import Unrendered
from gateway.services.executor import ThreadExecutor
from gateway.services.models import Model
from gateway.services.runs.history_source import History
from gateway.services.runs.run_builder import RENDERINGS_MAX, PromptExecutor
from gateway.services.runs.spec_builder import CreateCommand, RunInput
from gateway.tenancy import Principal, TenantId
from tests.fakes.create_bodies import parse
from tests.fakes.harmony_script import harmony_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.models.format import Rendering

TENANT = TenantId(UUID(int=1))
GIVEN = RunInput(
    CreateCommand(Principal(TENANT, "acme", TENANT), parse(input="hi"), None, 1, 0.0),
    Model("m", 0, 100, (), "medium", harmony_of("m")),
    History(None, (), 0),
    stored={},
    uuid=TENANT,
    created_at=0,
)


class Server:
    def __init__(self) -> None:
        self.asked: list[tuple[str, Sequence[bytes]]] = []

    async def render(self, model: str, questions: Sequence[bytes]) -> Mapping[bytes, Rendering]:
        self.asked.append((model, questions))
        return {question: array("I", [len(question)]) for question in questions}


async def run(work: Any) -> tuple[Any, Server]:
    threads, server = ThreadExecutor(threads_max=1, inline_bytes_max=10), Server()
    try:
        return await PromptExecutor(threads, lambda _: 1, server).run(work, GIVEN), server
    finally:
        threads.close()


async def test_work_that_lacks_nothing_is_done_once() -> None:
    assert (await run(lambda given: given.model.id))[0] == "m"


async def test_work_that_lacks_something_begins_anew_with_it() -> None:
    def work(given: RunInput) -> list[int]:
        for question in (b"a", b"bb"):
            if question not in given.rendered:
                raise Unrendered([question])
        return [one for ids in given.rendered.values() for one in ids]  # type: ignore[misc]

    done, server = await run(work)
    assert done == [1, 2]
    assert server.asked == [("m", (b"a",)), ("m", (b"bb",))]


async def test_work_that_always_lacks_something_ends() -> None:
    def work(given: RunInput) -> None:
        raise Unrendered([b"x" * len(given.rendered)])

    with pytest.raises(ContextLengthExceeded):
        await run(work)
    assert RENDERINGS_MAX > 2
