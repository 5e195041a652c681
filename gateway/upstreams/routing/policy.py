"""Decisions of routing: pure functions of what is known of the members, in seconds of waiting.

The rule, with the measurements behind each number, is explained in docs/routing.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

Reason = Literal["turn", "row", "index", "owner", "load", "cold", "only"]
"""Why a member was chosen: what was known of the prompt (the turn before in the same response, the
row of the response before, the index); its owner by rendezvous, while replicas cannot tell each
other anything; the load, where the member that holds the most was too busy; nothing was known; or
there was no choice.
"""

WARM_SHARE: Final = 0.5
"""A prompt is warm if a member holds this part of it: then all members are considered."""
CACHE_CHOICES: Final = 2
RANDOM_CHOICES: Final = 2
"""Of the others. If each replica took the idlest of all, all would take the same one."""


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Every number of routing.

    A token that has to be read counts `uncached_weight` times: to read it evicts something that
    others would have found. A member whose delay is at most `1 + delay_slack_share` times the least
    one is as good as the idlest: queues are known roughly, and above capacity all are long.
    `request_s` and `waiting_s` are what a request under way, and one that a server says is waiting,
    add to a delay. Of a load that was told earlier `drain_share` of what the member can read has
    been worked off.

    Of prompts the index has `entries_max` at most, with `entries_per_kv_token` for each token that
    servers say they keep. `horizon_s` is how long a member is believed to keep what nobody uses,
    until it shows otherwise. `read_tokens_per_s` is that of a member of which
    nothing is known. `exchange_*`: placements told to other replicas; what a replica told
    `peer_expiry_s` ago counts no more. Its load is an average of `load_average_s`.
    """

    uncached_weight: float = 2.0
    delay_slack_share: float = 0.5
    request_s: float = 0.004
    waiting_s: float = 0.1
    drain_share: float = 0.7
    entries_max: int = 200_000
    entries_per_kv_token: float = 4 / 512
    kv_tokens: int = 2_000_000
    horizon_s: float = 3600.0
    horizon_min_s: float = 5.0
    horizon_max_s: float = 86_400.0
    read_tokens_per_s: float = 8_000.0
    read_tokens_per_s_min: float = 2_000.0
    read_tokens_per_s_max: float = 200_000.0
    load_average_s: float = 30.0
    exchange_interval_s: float = 1.0
    exchange_entries_max: int = 4_096
    peer_expiry_s: float = 10.0
    hold_back_delay_s: float = 0.7


class Candidate(NamedTuple):
    """A member that may be chosen: tokens of the prompt that it is believed to hold, seconds until
    it gets to a new prompt, and the tokens a second that it reads.
    """

    name: str
    held: int
    delay_s: float
    rate: float


def delay_s(
    owed: float, in_flight: int, waiting: float, rate: float, policy: RoutingPolicy
) -> float:
    """Return the seconds until a member starts to read a new prompt.

    `owed` is the tokens that it has to read first, `in_flight` its requests in progress, `waiting`
    those in its queue, `rate` the tokens it reads a second.
    """
    return owed / rate + policy.request_s * in_flight + policy.waiting_s * waiting


def drained(amount: float, seconds: float, per_s: float, policy: RoutingPolicy) -> float:
    """Return what is left of work that was reported `seconds` ago.

    `per_s` of it is done a second.
    """
    return max(0.0, amount - policy.drain_share * per_s * max(0.0, seconds))


def unread(owed: float, prompts: int, seconds: float, rate: float, policy: RoutingPolicy) -> float:
    """Return how many of the `owed` tokens are still to be read.

    `prompts` (at least one) is the number of prompts, `seconds` the time since the last first token
    or the start of reading.

    Prompts are read one after another. Progress within the current prompt is unknown: it counts as
    one of mean length, so that a member that stands still keeps the prompts behind it.
    """
    return max(owed - owed / prompts, drained(owed, seconds, rate, policy))


def cost_s(one: Candidate, prompt: int, least_delay_s: float, policy: RoutingPolicy) -> float:
    """Return the cost, in seconds of waiting, to send a prompt of `prompt` tokens there.

    `least_delay_s` is that of the idlest candidate.
    """
    slack_s = (1 + policy.delay_slack_share) * least_delay_s
    uncached_s = (prompt - one.held) / one.rate
    return max(0.0, one.delay_s - slack_s) + policy.uncached_weight * uncached_s


def considered(candidates: Sequence[Candidate], prompt: int, random: Random) -> list[Candidate]:
    """Return all candidates if one holds much of the prompt.

    Otherwise, of many candidates, the best holders and two others.
    """
    few = CACHE_CHOICES + RANDOM_CHOICES
    if len(candidates) <= few or max(one.held for one in candidates) >= WARM_SHARE * prompt:
        return list(candidates)
    holders = sorted((one for one in candidates if one.held), key=lambda one: -one.held)
    holders = holders[:CACHE_CHOICES]
    others = [one for one in candidates if one not in holders]
    return holders + random.sample(others, RANDOM_CHOICES)


def choose(
    candidates: Sequence[Candidate], prompt: int, policy: RoutingPolicy, random: Random
) -> Candidate:
    """Return the candidate for a prompt of `prompt` tokens; there must be one."""
    chosen_from = considered(candidates, prompt, random)
    least_s = min(one.delay_s for one in chosen_from)
    costs = [(cost_s(one, prompt, least_s, policy), one.delay_s) for one in chosen_from]
    best = min(costs)
    ties = [one for one, cost in zip(chosen_from, costs, strict=True) if cost == best]
    return ties[0] if len(ties) == 1 else random.choice(ties)


def choose_owner(
    candidates: Sequence[Candidate], owner: str, prompt: int, policy: RoutingPolicy, random: Random
) -> Candidate:
    """Return the candidate for a prompt that has an owner and of which no one holds much.

    The owner is treated as if it held all of the prompt.
    """
    least_s = min(one.delay_s for one in candidates)
    mine = next(one for one in candidates if one.name == owner)
    best = choose(candidates, prompt, policy, random)
    as_if = cost_s(mine._replace(held=prompt), prompt, least_s, policy)
    return mine if as_if <= cost_s(best, prompt, least_s, policy) else best


def hold_back(
    candidates: Sequence[Candidate], prompt: int, *, is_continued: bool, policy: RoutingPolicy
) -> bool:
    """Return True if a request should wait: it begins a session, and the members are busy.

    Sessions in progress go first: those with a response before (`is_continued`), or most of whose
    prompt some member holds.
    """
    is_warm = any(one.held >= WARM_SHARE * prompt for one in candidates)
    if is_continued or is_warm or not candidates:
        return False
    return median(one.delay_s for one in candidates) > policy.hold_back_delay_s
