"""What routing knows of members, over turns, restarts, replicas and failures."""

from __future__ import annotations

from array import array
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.generation import Route, Sampling, TokenRequest
from gateway.telemetry.metrics import Metrics
from gateway.upstreams.routing.costs import RATES_MIN, RoutingPolicy
from gateway.upstreams.routing.exchange import packed_entries, packed_load
from gateway.upstreams.routing.prefix_index import Placement, member_id
from gateway.upstreams.routing.router import Flight, PeerReport, PlacedEntry, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.upstreams.routing.prefix_index import HashedPrefix
    from gateway.upstreams.routing.router import Decision

NAMES = ("a", "b", "c", "d")
SAMPLING = Sampling(max_tokens=10)
SAID = list(range(300))


class Clock:
    """Seconds that the test moves, for several replicas."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 1_000_000.0


def request(ids: Sequence[int], *, salt: str = "salt", model: str = "m") -> TokenRequest:
    return TokenRequest("r", model, array("I", ids), SAMPLING, salt, (), 1 << 31)


class Replica:
    """A router and what it is asked."""

    def __init__(self, clock: Clock, seed: int = 1, **policy: float) -> None:
        self.clock = clock
        self.metrics = Metrics()
        self.router = Router(
            RoutingPolicy(**policy),  # type: ignore[arg-type]
            b"secret" * 6,
            metrics=self.metrics,
            clock=clock,
            wall=clock.wall,
            random=Random(seed),
        )

    def decide(
        self, ids: Sequence[int], route: Route | None = None, names: Sequence[str] = NAMES
    ) -> Decision:
        return self.router.choose(names, self.prefix(ids), route)

    def prefix(self, ids: Sequence[int]) -> HashedPrefix:
        return self.router.prefix(request(ids))

    def turn(
        self,
        ids: Sequence[int],
        route: Route | None = None,
        *,
        names: Sequence[str] = NAMES,
        cached: int | None = None,
    ) -> Decision:
        """A whole turn, of which the member says how much it had cached."""
        decision = self.decide(ids, route, names)
        flight = self.router.begin(decision, route)
        flight.first()
        flight.ended(SAID, cached, is_finished=True)
        flight.close()
        return decision

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"gateway_routing_{name}", labels) or 0.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def replica(clock: Clock) -> Replica:
    return Replica(clock)


FIRST = list(range(2_000))
OTHER = list(range(50_000, 55_000))
SECOND = [*FIRST, *SAID, *range(5_000, 5_400)]


def test_a_conversation_stays_where_it_is(replica: Replica) -> None:
    first = replica.turn(FIRST)
    second = replica.decide(SECOND)
    assert (first.reason, first.expected) == ("cold", 0)
    assert (second.member, second.reason) == (first.member, "index")
    # The last id that was said has not been read there.
    assert second.expected == len(FIRST) + len(SAID) - 1


def test_another_replica_knows_it_by_the_row(clock: Clock) -> None:
    route = Route()
    first = Replica(clock).turn(FIRST, route)
    for seed in range(8):
        second = Replica(clock, seed).decide(SECOND, Route(route.placement))
        assert (second.member.name, second.reason) == (first.member.name, "row")
        assert second.expected == len(FIRST) + len(SAID) - 1


def test_without_the_row_another_replica_knows_nothing(clock: Clock) -> None:
    """The mutant that does not read the row: three replicas scatter a session."""
    first = Replica(clock).turn(FIRST)
    seconds = [Replica(clock, seed).decide(SECOND) for seed in range(16)]
    assert {second.expected for second in seconds} == {0}
    assert {second.member.name for second in seconds} > {first.member.name}


def test_within_a_response_the_turn_before_is_known(replica: Replica) -> None:
    route = Route()
    first = replica.turn(FIRST, route)
    second = replica.decide(SECOND, route)
    assert (second.member, second.reason) == (first.member, "turn")


def test_a_prompt_that_leaves_thoughts_out_is_found_up_to_them(clock: Clock) -> None:
    """Harmony drops what was thought once the user has spoken: the ends of turns are all that the
    old prompts and the new one have in common.
    """
    route, prompts = Route(), [FIRST]
    replica = Replica(clock)
    replica.turn(FIRST, route)
    for n in range(12):
        prompts.append([*prompts[-1], *SAID, *range(9_000 + 500 * n, 9_333 + 500 * n)])
        replica.turn(prompts[-1], route)
    other = Replica(clock)
    for prompt in (prompts[3], prompts[7], prompts[12]):
        cut = [*prompt, *range(70_000, 70_700)]
        assert other.decide(cut, Route(route.placement)).expected == len(prompt)


@pytest.mark.parametrize("change", [{"salt": "other"}, {"model": "n"}])
def test_another_tenant_or_model_holds_nothing_of_it(
    replica: Replica, change: dict[str, str]
) -> None:
    route = Route()
    replica.turn(FIRST, route)
    prefix = replica.router.prefix(request(SECOND, **change))
    assert replica.router.choose(NAMES, prefix, Route(route.placement)).expected == 0
    assert all(one.held == 0 for one in replica.router.candidates(NAMES, prefix, route))


def test_what_is_expected_is_never_all_of_the_prompt(replica: Replica) -> None:
    replica.turn(FIRST)
    assert replica.decide(FIRST).expected == len(FIRST) - 1
    assert replica.decide([]).expected == 0


@pytest.mark.parametrize("how", ["told", "came back", "missing"])
def test_after_a_restart_nothing_is_expected(clock: Clock, how: str) -> None:
    replica, route = Replica(clock), Route()
    replica.router.probed("a", epoch=int(clock.wall()) - 500)
    replica.turn(FIRST, route, names=["a"])
    replica.turn(OTHER, names=["a"], cached=4_000)
    assert replica.decide(SECOND, route).expected > 2_000
    clock.now += 5
    before = replica.metric("caches_lost_total", upstream="a")
    match how:
        case "told":
            replica.router.probed("a", epoch=int(clock.wall()) - 1)
        case "came back":
            replica.router.returned("a")
        case _:
            for _ in range(2):
                replica.turn([*OTHER, 1, 2, 3], names=["a"], cached=0)
    assert replica.metric("caches_lost_total", upstream="a") == before + 1
    assert replica.decide(SECOND, route).expected == 0
    assert replica.decide(SECOND).expected == 0


def test_a_member_that_says_it_is_the_same_process_keeps_what_it_has(clock: Clock) -> None:
    replica, route = Replica(clock), Route()
    epoch = int(clock.wall()) - 500
    replica.router.probed("a", epoch=epoch)
    replica.turn(FIRST, route, names=["a"])
    clock.now += 5
    replica.router.returned("a", epoch=epoch)
    assert replica.decide(SECOND, route).expected > 2_000
    replica.router.returned("a", epoch=epoch + 400)
    assert replica.decide(SECOND, route).expected == 0
    assert replica.router.member("a").epoch == epoch + 400


def test_a_row_of_another_process_of_the_member_counts_for_nothing(clock: Clock) -> None:
    """Even where clocks disagree about when it began."""
    one, other, route = Replica(clock), Replica(clock), Route()
    one.router.probed("a", epoch=1_000)
    one.turn(FIRST, route, names=["a"])
    other.router.probed("a", epoch=2_000)
    assert other.decide(SECOND, Route(route.placement)).expected == 0


def test_what_nobody_used_for_longer_than_the_horizon_is_gone(clock: Clock) -> None:
    replica, route = Replica(clock, horizon_s=60.0), Route()
    replica.turn(FIRST, route)
    clock.now += 59
    assert replica.decide(SECOND, route).expected > 2_000
    assert replica.decide(SECOND).expected > 2_000
    clock.now += 2
    assert replica.decide(SECOND, route).expected == 0
    assert replica.decide(SECOND).expected == 0


@pytest.mark.parametrize("placement", [b"", b"\x09" * 13, b"\x01" * 14, b"\x01" + bytes(12)])
def test_a_row_that_says_nothing_is_overlooked(replica: Replica, placement: bytes) -> None:
    assert replica.decide(FIRST, Route(placement)).reason == "cold"


def test_a_row_of_a_member_that_is_not_there_any_more_is_overlooked(replica: Replica) -> None:
    placement = Placement(member_id("gone"), 0, int(replica.clock.wall()), ())
    assert replica.decide(FIRST, Route(placement.pack())).reason == "cold"


@pytest.mark.parametrize("first", [0, 1])
def test_members_whose_ids_are_equal_leave_one_after_the_other(
    replica: Replica, first: int
) -> None:
    names = ("b-38829", "b-55652")
    assert member_id(names[0]) == member_id(names[1])
    for name in names:
        replica.router.member(name)
    for name in (names[first], names[1 - first]):
        replica.router.forget(name)
        assert not replica.router.knows(name)


def test_a_member_that_is_not_a_candidate_is_not_chosen_however_warm(replica: Replica) -> None:
    route = Route()
    first = replica.turn(FIRST, route).member.name
    others = [name for name in NAMES if name != first]
    assert replica.decide(SECOND, route, others).member.name in others
    assert replica.decide(SECOND, route, others[:1]).reason == "only"


def test_a_busy_member_is_left_and_the_reason_is_its_load(replica: Replica) -> None:
    first = replica.turn(FIRST).member
    first.owed = 10**6
    second = replica.decide(SECOND)
    assert second.member is not first
    assert second.reason == "load"


def test_cold_prompts_are_counted_as_owed_until_their_first_token(replica: Replica) -> None:
    decision = replica.decide(FIRST)
    flight, member = replica.router.begin(decision), decision.member
    assert (member.in_flight, member.owed) == (1, len(FIRST))
    flight.first()
    assert (member.in_flight, member.owed) == (1, 0)
    flight.ended(SAID, None, is_finished=True)
    flight.close()
    flight.close()
    assert (member.in_flight, member.owed) == (0, 0)


@pytest.mark.parametrize("began", [True, False])
def test_what_is_cancelled_or_fails_owes_nothing_any_more(replica: Replica, began: bool) -> None:
    decision = replica.decide(FIRST)
    flight = replica.router.begin(decision)
    if began:
        flight.first()
    flight.close()
    assert (decision.member.in_flight, decision.member.owed) == (0, 0)


def test_without_a_first_token_nothing_is_known_to_be_there(replica: Replica) -> None:
    route = Route()
    flight = replica.router.begin(replica.decide(FIRST), route)
    flight.ended([], None, is_finished=False)
    flight.close()
    assert route.placement is None
    assert replica.decide(FIRST).expected == 0


def test_siblings_find_a_prompt_as_soon_as_it_was_read(replica: Replica) -> None:
    flight = replica.router.begin(replica.decide(FIRST))
    assert replica.decide(FIRST).expected == 0
    flight.first()
    assert replica.decide(FIRST).expected == len(FIRST) - 1
    flight.close()


def test_the_speed_of_a_member_is_learned_while_it_has_nothing_else(
    clock: Clock, replica: Replica
) -> None:
    for n in range(RATES_MIN):
        start = 20_000 * n
        alone, behind = (
            replica.router.begin(replica.decide(range(at, at + 6_000), names=["a"]))
            for at in (start, start + 10_000)
        )
        for flight in (alone, behind):
            clock.now += 2
            flight.first()
            flight.ended(SAID, None, is_finished=True)
            flight.close()
    assert replica.router.member("a").rate_at(clock.now) == pytest.approx(3_000)
    # The others are believed to be like those that are known.
    rates = {one.name: one.rate for one in replica.router.candidates(NAMES, replica.prefix([1]))}
    assert rates == pytest.approx(dict.fromkeys(NAMES, 3_000))


def test_what_a_member_reports_is_counted_once_it_ever_had_something(replica: Replica) -> None:
    replica.turn(FIRST, names=["a"], cached=0)
    replica.turn(SECOND, names=["a"], cached=0)
    assert replica.metric("prompt_tokens_total", upstream="a", type="answered") == 0
    replica.turn([*SECOND, *SAID, 1, 2, 3], names=["a"], cached=2_688)
    replica.turn(FIRST, names=["a"], cached=None)
    expected = len(SECOND) + len(SAID) - 1
    answered = replica.metric("prompt_tokens_total", upstream="a", type="answered")
    assert answered == expected + len(FIRST) - 1
    assert replica.metric("prompt_tokens_total", upstream="a", type="reported") == 2_688
    assert replica.metric("mispredictions_total", upstream="a") == 1
    assert replica.metric("decisions_total", upstream="a", reason="only") == 4
    assert replica.metric("index_entries") == len(replica.router.index)


def test_the_index_is_as_large_as_what_members_keep(replica: Replica) -> None:
    for name in NAMES:
        replica.router.probed(name, kv_tokens=6_400, waiting=0)
    for n in range(40):
        replica.turn(range(n * 3_000, n * 3_000 + 2_900))
    assert len(replica.router.index) == 4 * 6_400 * 4 // 512


def told(router: Router, replica: str = "one", age_s: float = 0.1) -> PeerReport:
    loads, entries = router.report()
    return PeerReport(replica, age_s, loads, entries)


def test_what_replicas_tell_each_other_finds_sessions_without_rows(clock: Clock) -> None:
    one, two = Replica(clock, 1), Replica(clock, 2)
    for name in NAMES:
        two.router.member(name)
    first = one.turn(FIRST)
    report = told(one.router)
    assert len(report.entries) < 10
    two.router.exchanged([report, report])
    second = two.decide(SECOND)
    assert (second.member.name, second.reason) == (first.member.name, "index")
    assert second.expected == len(FIRST) + len(SAID) - 1
    assert one.router.report()[1] == []


def test_the_load_of_others_counts_for_a_while(clock: Clock) -> None:
    one, two = Replica(clock, 1), Replica(clock, 2)
    decision = one.decide(FIRST)
    one.router.begin(decision)
    clock.now += 1_000
    two.router.member(decision.member.name)
    two.router.exchanged([told(one.router)])
    mine = two.router.member(decision.member.name)
    assert mine.delay_s(1_000.0, clock.now) == pytest.approx(2.0 + 0.004)
    two.router.exchanged([PeerReport("one", 5.0, {mine.id: (9, 9_000)}, [])])
    assert mine.delay_s(1_000.0, clock.now) == pytest.approx(2.0 + 0.004), "that was older"
    clock.now += 11
    assert mine.delay_s(1_000.0, clock.now) == 0
    two.router.exchanged([PeerReport("one", 60.0, {mine.id: (9, 9_000)}, [])])
    assert mine.peers == {}


def test_reports_of_members_that_nobody_knows_here_are_overlooked(replica: Replica) -> None:
    entries = [PlacedEntry(7, 12345, 3)]
    replica.router.exchanged([PeerReport("x", 0.0, {12345: (1, 1)}, entries)])
    assert len(replica.router.index) == 0


def test_no_more_is_told_than_the_bound(clock: Clock) -> None:
    replica = Replica(clock, exchange_entries_max=10)
    for n in range(20):
        replica.turn(range(n * 3_000, n * 3_000 + 2_900))
    loads, entries = replica.router.report()
    assert len(entries) == 10
    assert len(packed_entries(entries)) == 140
    assert len(packed_load(loads)) == 12 * len(NAMES)


def cut_off(clock: Clock, seed: int) -> Replica:
    """A replica that heard of another one, and then nothing for a minute."""
    replica = Replica(clock, seed)
    replica.router.member("a")
    report = PeerReport("one", 0.0, {member_id("a"): (0, 0)}, [])
    replica.router.exchanged([report])
    clock.now += 60
    return replica


def test_replicas_that_hear_nothing_agree_on_an_owner(clock: Clock) -> None:
    replicas = [cut_off(clock, seed) for seed in range(8)]
    opening = len(FIRST) - 100
    for key in (None, "session-1", "session-2"):
        route = Route(cache_key=key, opening=opening)
        chosen = [one.decide(FIRST, route) for one in replicas]
        assert len({one.member.name for one in chosen}) == 1
        assert {one.reason for one in chosen} == {"owner"}
    owners = {
        replicas[0].decide(FIRST, Route(cache_key=f"session-{n}")).member.name for n in range(40)
    }
    assert owners == set(NAMES)


def test_an_owner_is_not_asked_for_while_replicas_hear_each_other(clock: Clock) -> None:
    replica = cut_off(clock, 1)
    route = Route(cache_key="session")
    assert replica.decide(FIRST, route).reason == "owner"
    assert replica.decide(FIRST, Route()).reason == "cold"
    assert replica.decide(FIRST).reason == "cold"
    placement = Placement(member_id("gone"), 0, 0, ()).pack()
    assert replica.decide(FIRST, Route(placement, cache_key="session")).reason == "cold"
    replica.router.exchanged([])
    assert replica.decide(FIRST, route).reason == "cold"
    assert replica.router.exchange_age_s == 0


def test_a_replica_that_was_always_alone_asks_for_no_owner(clock: Clock) -> None:
    replica = Replica(clock)
    replica.router.exchanged([])
    clock.now += 60
    assert replica.decide(FIRST, Route(cache_key="session")).reason == "cold"
    assert Replica(clock).router.exchange_age_s == 0


class Accounting(RuleBasedStateMachine):
    """After every event of any requests, what members owe and have in flight is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = Replica(Clock(), seed=3)
        self.open: list[tuple[Decision, Flight, bool]] = []

    @rule(
        length=st.integers(0, 3_000), seed=st.integers(0, 3), names=st.sampled_from([NAMES, ("b",)])
    )
    def begin(self, length: int, seed: int, names: Sequence[str]) -> None:
        decision = self.replica.decide(range(seed, seed + length), names=names)
        assert decision.member.name in names
        self.open.append((decision, self.replica.router.begin(decision), False))

    @rule(place=st.integers(0, 50))
    def first(self, place: int) -> None:
        for n, (decision, flight, has_begun) in enumerate(self.open):
            if n == place and not has_begun:
                flight.first()
                self.open[n] = (decision, flight, True)

    @rule(
        place=st.integers(0, 50), said=st.integers(0, 600), cached=st.none() | st.integers(0, 900)
    )
    def end(self, place: int, said: int, cached: int | None) -> None:
        if place < len(self.open):
            _, flight, _ = self.open.pop(place)
            flight.ended(range(said), cached, is_finished=cached is not None)
            flight.close()

    @rule(place=st.integers(0, 50))
    def fail(self, place: int) -> None:
        if place < len(self.open):
            self.open.pop(place)[1].close()

    @rule(seconds=st.floats(0, 100), name=st.sampled_from(NAMES))
    def restart(self, seconds: float, name: str) -> None:
        self.replica.clock.now += seconds
        self.replica.router.returned(name)

    @invariant()
    def counts_are_true(self) -> None:
        for name in NAMES:
            member = self.replica.router.member(name)
            mine = [row for row in self.open if row[0].member is member]
            assert member.in_flight == len(mine)
            assert member.owed == sum(
                decision.prefix.length - decision.expected
                for decision, _, has_begun in mine
                if not has_begun
            )


Accounting.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_accounts = pytest.mark.slow(Accounting.TestCase)
