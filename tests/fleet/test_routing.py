"""What is expected to be cached is what servers report.

vLLM has to be started with `--enable-prompt-tokens-details`, SGLang with `--enable-cache-report`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.routed_sessions import Rounds
from tests.fleet.conftest import restarted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.routed_sessions import Hit
    from tests.fleet.conftest import Fleet

BLOCK_IDS = 128
"""Of vLLM on a CPU; SGLang's is smaller."""

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]


def check(hits: Sequence[Hit]) -> None:
    near = [abs(hit.expected - hit.reported) <= BLOCK_IDS for hit in hits]
    print(f"within a block: {sum(near)} of {len(hits)}; {hits}")
    assert sum(near) >= 0.95 * len(hits)


async def test_what_is_expected_is_what_servers_report(fleet: Fleet) -> None:
    check(await Rounds(fleet.gateways, fleet.clients, fleet.model).later())


@pytest.mark.usefixtures("restarts")
@pytest.mark.parametrize("first", [0, -1])
async def test_nothing_is_expected_of_a_server_that_was_restarted(fleet: Fleet, first: int) -> None:
    number = range(len(fleet.recorders))[first]
    rounds = Rounds(fleet.gateways, fleet.clients, fleet.model)
    before = {hit.upstream for hit in await rounds.later(2)}
    assert before == {f"b{one}" for one in range(len(fleet.recorders))}
    await restarted(number)
    await fleet.until_healthy()
    hits = await rounds.once()
    # Its sessions go wherever there is room: they are new everywhere.
    assert any(not hit.expected for hit in hits)
    there = [hit for hit in hits if hit.upstream == f"b{number}"]
    assert [hit.expected for hit in there] == [0] * len(there)
    assert all(hit.reported <= BLOCK_IDS for hit in there)
    elsewhere = [hit for hit in hits if hit not in there]
    assert any(hit.expected for hit in elsewhere)
    check([*hits, *await rounds.once()])
