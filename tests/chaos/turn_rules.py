"""Looks for anomalies in conversations. Pure: it can be fed lies in tests.

`replay` goes through what the database noted and finds out what every conversation was at any time;
its own rules are `writer`, `once` and `order`. `compare` holds against that what backends were
asked (`prompt`), what is said at the end (`answer`), and what clients were shown and told
(`listed`, `kept`, `final`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway import ids
from tests.chaos.history import Anomaly
from tests.chaos.prompts import shown_for
from tests.chaos.talkers import LISTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from tests.chaos.prompts import Prompts, Shown
    from tests.chaos.talkers import Heard, Listing, Telling
    from tests.chaos.witness import Item, Note, Witnessed

ADDED_STATUSES: Final = ("completed", "incomplete")


@dataclass(slots=True)
class Timeline:
    """A conversation. `states` are the items after every change of them, oldest first.

    `taken` and `ended` name the state in which a response took it and that in which it left it,
    `held_s` for how long it had it.
    """

    states: list[tuple[Item, ...]] = field(default_factory=lambda: [()])
    taken: dict[UUID, int] = field(default_factory=dict)
    ended: dict[UUID, int] = field(default_factory=dict)
    statuses: dict[UUID, str] = field(default_factory=dict)
    held_s: dict[UUID, float] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    writer: UUID | None = None
    since: datetime | None = None


class Replayed(NamedTuple):
    """The timeline of every conversation that was ever changed, and what is wrong with it."""

    timelines: Mapping[UUID, Timeline]
    anomalies: list[Anomaly]


def replay(witnessed: Witnessed) -> Replayed:
    """Go through all notes, one transaction of a conversation after the other."""
    timelines: defaultdict[UUID, Timeline] = defaultdict(Timeline)
    anomalies: list[Anomaly] = []
    for notes in _transactions(witnessed.notes):
        uuid = notes[0].conversation
        timeline = timelines[uuid]
        for rule, found in _step(timeline, notes, witnessed.own_items):
            anomalies.append(Anomaly(rule, ids.conversation_id(uuid), found))
    for uuid, timeline in timelines.items():
        if timeline.writer is not None:
            found = f"{ids.response_id(timeline.writer)} never ended"
            anomalies.append(Anomaly("writer", ids.conversation_id(uuid), found))
    return Replayed(timelines, anomalies)


def compare(
    replayed: Replayed, witnessed: Witnessed, prompts: Prompts, heard: Heard
) -> list[Anomaly]:
    """Everything that is wrong between the timelines and what others saw."""
    timelines = replayed.timelines
    anomalies = [
        Anomaly("final", ids.conversation_id(uuid), "its rows are not what became of it")
        for uuid, timeline in timelines.items()
        if list(timeline.states[-1]) != list(witnessed.items.get(uuid, ()))
    ]
    inputs = {telling.turn.text: telling for telling in heard.tellings}
    for timeline in timelines.values():
        for response in timeline.taken:
            about = ids.response_id(response)
            told = _telling_of(inputs, witnessed.own_items.get(response, ()))
            anomalies += [
                Anomaly(rule, about, found)
                for rule, found in _wrong_turn(timeline, response, told, prompts)
            ]
    for telling in heard.tellings:
        anomalies += _wrong_telling(timelines, telling, prompts)
    for listing in heard.listings:
        anomalies += _wrong_listing(timelines, listing)
    for deed in heard.deeds:
        uuid = ids.parse_conversation_id(deed.conversation)
        noted = {
            note.item["id"] for note in witnessed.notes if note.item and note.kind == deed.kind
        }
        if uuid not in timelines or not noted.issuperset(deed.ids):
            found = f"{deed.ids} were {deed.kind}, and that is not so"
            anomalies.append(Anomaly("kept", deed.conversation, found))
    return anomalies


def _transactions(notes: Sequence[Note]) -> Iterator[list[Note]]:
    """Notes on one conversation that were committed together, in the order of their last."""
    open_: dict[tuple[str, UUID], list[Note]] = {}
    last: dict[tuple[str, UUID], int] = {}
    for number, note in enumerate(notes):
        key = (note.transaction, note.conversation)
        open_.setdefault(key, []).append(note)
        last[key] = number
    for key in sorted(last, key=last.__getitem__):
        yield open_[key]


def _step(
    timeline: Timeline, notes: Sequence[Note], own_items: Mapping[UUID, Sequence[Item]]
) -> Iterator[tuple[str, str]]:
    """Apply one transaction; yields the rules it breaks, and how."""
    ended = next((note for note in notes if note.kind == "ended"), None)
    yield from _written(timeline, notes, ended)
    # One statement adds them all, in whatever order; where they stand is what counts.
    added = sorted((note for note in notes if note.kind == "added"), key=_place)
    erased = {note.position for note in notes if note.kind == "erased"}
    if added or erased:
        yield from _placed(timeline, added)
        timeline.states.append(_changed(timeline, added, erased))
    for note in notes:
        if note.kind == "taken" and note.response is not None:
            timeline.taken[note.response] = len(timeline.states) - 1
            timeline.writer, timeline.since = note.response, note.at
    if ended is not None and ended.response in timeline.taken:
        expected = own_items.get(ended.response, ()) if ended.status in ADDED_STATUSES else ()
        if [note.item for note in added] != list(expected):
            yield (
                "once",
                f"{ids.response_id(ended.response)} is {ended.status}, has {len(expected)} items,"
                f" and {len(added)} were added",
            )
        if ended.response in timeline.ended:
            yield "once", f"{ids.response_id(ended.response)} ended again"
        timeline.ended[ended.response] = len(timeline.states) - 1
        timeline.statuses[ended.response] = ended.status or ""
        if timeline.writer == ended.response and timeline.since is not None:
            timeline.held_s[ended.response] = (ended.at - timeline.since).total_seconds()
            timeline.writer = None


def _written(
    timeline: Timeline, notes: Sequence[Note], ended: Note | None
) -> Iterator[tuple[str, str]]:
    """Nobody but the writer changes anything, and nobody takes what is taken."""
    if timeline.writer is None:
        return
    kinds = sorted({note.kind for note in notes})
    if ended is None or (ended.response != timeline.writer and kinds != ["ended"]):
        yield "writer", f"{kinds} while {ids.response_id(timeline.writer)} is running"


def _placed(timeline: Timeline, added: Sequence[Note]) -> Iterator[tuple[str, str]]:
    """What is added stands together, behind everything that was ever there."""
    places = [_place(note) for note in added]
    before = max(timeline.positions.values(), default=-1)
    if places and places != list(range(places[0], places[0] + len(places))):
        yield "order", f"added at {places}"
    if places and places[0] <= before:
        yield "order", f"added at {places[0]}, and there was something at {before}"
    timeline.positions |= {
        str(note.item["id"]): place
        for note, place in zip(added, places, strict=True)
        if note.item is not None
    }


def _place(note: Note) -> int:
    return note.position or 0


def _changed(
    timeline: Timeline, added: Sequence[Note], erased: set[int | None]
) -> tuple[Item, ...]:
    left = [item for item in timeline.states[-1] if timeline.positions[item["id"]] not in erased]
    return (*left, *(note.item for note in added if note.item is not None))


def _telling_of(inputs: Mapping[str, Telling], own: Sequence[Item]) -> Telling | None:
    """Who asked for the response whose own items these are."""
    texts = [item["content"][0]["text"] for item in own if item.get("role") == "user"]
    return inputs.get(texts[0]) if texts else None


def _wrong_turn(
    timeline: Timeline, response: UUID, telling: Telling | None, prompts: Prompts
) -> Iterator[tuple[str, str]]:
    """A stored turn: what its model was asked, and what it said."""
    if telling is None:  # it said nothing: it was cancelled or failed
        return
    turn = telling.turn
    own = {"type": "message", "role": "user", "content": [{"text": turn.text}]}
    expected = shown_for((*timeline.states[timeline.taken[response]], own))
    status = timeline.statuses.get(response)
    if turn.twist == "compact":
        if expected not in prompts.for_summaries:
            yield "prompt", "nobody was asked for a summary of what the conversation was"
        return
    asked = prompts.of_responses.get(response, ())
    if status == "completed" and not asked:
        yield "prompt", "it is completed, and nobody was asked"
    for shown in asked:
        if shown != expected:
            yield "prompt", _difference(shown, expected)


def _wrong_telling(
    timelines: Mapping[UUID, Timeline], telling: Telling, prompts: Prompts
) -> Iterator[Anomaly]:
    """What the client was told of the end, and turns that are not added."""
    turn, told = telling.turn, telling.told
    conversation = ids.parse_conversation_id(turn.conversation)
    response = telling.transcript.uuid
    about = telling.transcript.response_id or "-"
    if told is not None and told["status"] == "completed" and turn.twist != "compact":
        texts = [one["content"][0]["text"] for one in told["output"] if one["type"] == "message"]
        if texts != [turn.say]:
            yield Anomaly("answer", about, f"said {texts} instead of {turn.say!r}")
    if response is None or conversation is None:
        return
    timeline = timelines.get(conversation, Timeline())
    if turn.stored:
        if told is not None and timeline.statuses.get(response) != told["status"]:
            status = timeline.statuses.get(response)
            yield Anomaly("kept", about, f"told {told['status']}, and it is {status}")
    elif turn.twist == "unstored":
        own = {"type": "message", "role": "user", "content": [{"text": turn.text}]}
        possible = {shown_for((*state, own)) for state in timeline.states}
        for shown in prompts.of_responses.get(response, ()):
            if shown not in possible:
                yield Anomaly("prompt", about, "it read what the conversation never was")


def _wrong_listing(timelines: Mapping[UUID, Timeline], listing: Listing) -> Iterator[Anomaly]:
    """What was listed is the end of what the conversation was at some time, or since a turn."""
    uuid = ids.parse_conversation_id(listing.conversation)
    timeline = timelines.get(uuid, Timeline()) if uuid else Timeline()
    behind = ids.parse_response_id(listing.behind) if listing.behind else None
    first = timeline.ended.get(behind, 0) if behind else 0
    ends = {
        tuple(str(item["id"]) for item in state[: -LISTED - 1 : -1])
        for state in timeline.states[first:]
    }
    if listing.ids not in ends:
        found = f"{len(listing.ids)} items that were never its last ones, or no longer"
        yield Anomaly("listed", listing.conversation, found)


def _difference(shown: Shown, expected: Shown) -> str:
    """Where the first one is, and how many messages there are."""
    at = next(
        (at for at, pair in enumerate(zip(shown, expected, strict=False)) if pair[0] != pair[1]),
        min(len(shown), len(expected)),
    )
    return (
        f"{len(shown)} messages for {len(expected)}; message {at} is"
        f" {str(shown[at : at + 1])[:200]} instead of {str(expected[at : at + 1])[:200]}"
    )
