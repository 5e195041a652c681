"""Looks for anomalies in what clients saw and what is stored. Pure: it can be fed lies in tests.

Rules about one reader: `numbered`, `agreed`, `terminal`, `gapless`, `refused`. About the stored
log: `entries`, `epochs`, `folds`. About both: `logged`, `missing`. About how it ended: `status`,
`body`, `answer`, `usage`, `booked`, `changed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from gateway.entries import Compacted, Repair, Tokens, ToolEnded, unpack
from gateway.eventlog.fold.fold import Fold
from gateway.generation import Framing
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.tokenizer import END, OPENING, RETURN
from gateway.protocol.grants import grants_of
from gateway.protocol.responses.response_object import ResponseHead
from gateway.protocol.responses.response_rules import rules_of
from tests.chaos.history import Anomaly, Record, Transcript, is_terminal
from tests.chaos.oracle import Question, answer_to
from tests.fakes.fold_formats import parsed_by
from tests.fakes.harmony_oracle import vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from gateway.entries import Entry
    from tests.chaos.history import Connection

TERMINAL_STATUSES: Final = ("completed", "incomplete", "failed", "cancelled")
UNAVAILABLE: Final = (0, 200, 429, 503)
"""What a reader may be answered while something is down; 0 is no answer at all."""
_FRAMING: Final = Framing(opening=OPENING, turn_end=RETURN, message_end=END)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One response: who read it, and what is stored of it (None: nothing)."""

    response: str
    transcripts: Sequence[Transcript]
    record: Record | None


def check(
    transcripts: Iterable[Transcript], records: Mapping[UUID, Record], rules: Rules | None = None
) -> list[Anomaly]:
    """Everything that is wrong, once all responses should have ended; `rules`: all of them."""
    read: dict[UUID, list[Transcript]] = {uuid: [] for uuid in records}
    for transcript in transcripts:
        if transcript.uuid is not None:
            read.setdefault(transcript.uuid, []).append(transcript)
    return [
        Anomaly(name, ids.response_id(uuid), found)
        for uuid, readers in read.items()
        for name, rule in (RULES if rules is None else rules).items()
        for found in rule(Evidence(ids.response_id(uuid), readers, records.get(uuid)))
    ]


def unchanged(before: Mapping[UUID, Record], after: Mapping[UUID, Record]) -> list[Anomaly]:
    """What had ended must stay exactly as it was; nothing may vanish."""
    anomalies = []
    for uuid, record in before.items():
        if record.status in TERMINAL_STATUSES and after.get(uuid) != record:
            now = after[uuid].status if uuid in after else "gone"
            found = f"it was {record.status}, and is {now} or has other contents"
            anomalies.append(Anomaly("changed", ids.response_id(uuid), found))
    return anomalies


def fold_events(record: Record) -> list[bytes]:
    """The `data` of every event of a stored log. Raises `ValueError` for a log that has none."""
    request = orjson.loads(record.request)
    echo = request["echo"]
    grants = grants_of(request["grants"]) if "grants" in request else None
    head = ResponseHead(record.uuid, record.created_at, record.background, echo, grants=grants)
    rules = rules_of(echo, grants)
    tools = None if rules.calls == "none" else frozenset(rules.tools)
    fold = Fold(
        head,
        parsed_by(
            lambda trace: Parser(vocabulary(), tools, trace=trace, preambles=rules.answer is None),
            _FRAMING,
        ),
        rules,
    )
    return [event.data for entry in entries_of(record) for event in fold.apply(entry)]


def entries_of(record: Record) -> list[Entry]:
    """All entries of a stored log. Raises `ValueError` for damaged ones."""
    return [entry for row in record.log for entry in unpack(row.entries)]


def _numbered(evidence: Evidence) -> Iterator[str]:
    for connection in _streams(evidence):
        numbers = [event["sequence_number"] for event in connection.events()]
        first = connection.after + 1
        if numbers != list(range(first, first + len(numbers))):
            yield f"numbers {_brief(numbers)} after {connection.after}"


def _agreed(evidence: Evidence) -> Iterator[str]:
    seen: dict[int, bytes] = {}
    for connection in _streams(evidence):
        for frame in connection.frames:
            number = orjson.loads(frame.data)["sequence_number"]
            if seen.setdefault(number, frame.data) != frame.data:
                yield f"event {number} is {frame.data[:200]!r}, and was {seen[number][:200]!r}"
                return


def _terminal(evidence: Evidence) -> Iterator[str]:
    for connection in _streams(evidence):
        ends = [is_terminal(event) for event in connection.events()]
        if any(ends[:-1]):
            yield f"{sum(ends)} terminal events, or something behind one"
        if connection.done and ends and not ends[-1]:
            yield "[DONE] without a terminal event"


def _gapless(evidence: Evidence) -> Iterator[str]:
    for transcript in evidence.transcripts:
        numbers = {
            event["sequence_number"]
            for connection in transcript.connections
            for event in connection.events()
        }
        first = min((connection.after + 1 for connection in transcript.connections), default=0)
        if numbers and numbers != set(range(first, max(numbers) + 1)):
            yield f"the reader never saw {sorted(set(range(max(numbers))) - numbers)[:5]}"


def _refused(evidence: Evidence) -> Iterator[str]:
    for transcript in evidence.transcripts:
        for connection in transcript.connections:
            if connection.status not in UNAVAILABLE:
                yield f"answered {connection.status}: {connection.body[:300]!r}"


def _missing(evidence: Evidence) -> Iterator[str]:
    if evidence.record is None and any(transcript.stored for transcript in evidence.transcripts):
        yield "a client read it, and nothing is stored"


def _entries(evidence: Evidence) -> Iterator[str]:
    record = evidence.record
    if record is None or not record.durable:
        return
    expected = 0
    for row in record.log:
        if row.first_entry != expected:
            yield f"a row begins at entry {row.first_entry} instead of {expected}"
        if len(unpack(row.entries)) != row.count:
            yield f"the row at {row.first_entry} does not hold {row.count} entries"
        expected = row.first_entry + row.count
    if expected != record.next_entry:
        yield f"the log ends at {expected}, its head says {record.next_entry}"


def _epochs(evidence: Evidence) -> Iterator[str]:
    record = evidence.record
    if record is not None:
        epochs = [row.epoch for row in record.log] + [record.epoch]
        if epochs != sorted(epochs):
            yield f"epochs {_brief(epochs)}"


def _folds(evidence: Evidence) -> Iterator[str]:
    record = evidence.record
    if record is None or not record.durable:
        return
    try:
        events = [orjson.loads(data) for data in fold_events(record)]
    except ValueError as error:
        yield f"the log does not fold: {error}"
        return
    ends = sum(map(is_terminal, events))
    if (ends, ends and is_terminal(events[-1])) != (1, True):
        yield f"the log has {ends} terminal events"


def _logged(evidence: Evidence) -> Iterator[str]:
    record = evidence.record
    if record is None or not record.durable:
        return
    try:
        stored = fold_events(record)
    except ValueError:
        return  # another rule's business
    for connection in _streams(evidence):
        shown = [frame.data for frame in connection.frames]
        first = connection.after + 1
        if shown != stored[first : first + len(shown)]:
            place = next(
                (
                    place
                    for place, data in enumerate(shown, first)
                    if stored[place : place + 1] != [data]
                ),
                first,
            )
            yield f"event {place} was shown, and the log has another or none there"
        if connection.done and first + len(shown) < len(stored):
            yield f"[DONE] after event {first + len(shown) - 1} of {len(stored)}"


def _status(evidence: Evidence) -> Iterator[str]:
    record = evidence.record
    if record is None:
        return
    if record.status not in TERMINAL_STATUSES:
        yield f"it is still {record.status}"
    for ending in _endings(evidence):
        if ending["response"]["status"] != record.status:
            yield f"a client was told {ending['response']['status']}, stored is {record.status}"


def _body(evidence: Evidence) -> Iterator[str]:
    record = evidence.record
    if record is None or record.status not in TERMINAL_STATUSES:
        return
    if record.body is None:
        yield "it has ended without a body"
        return
    body = orjson.loads(record.body)
    if any(ending["response"] != body for ending in _endings(evidence)):
        yield "a client was told another end than the one that is stored"


def _answer(evidence: Evidence) -> Iterator[str]:
    for transcript in evidence.transcripts:
        for body in bodies(evidence):
            if body["status"] == "completed":
                yield from _wrong_items(transcript, body)


def _wrong_items(transcript: Transcript, body: dict[str, Any]) -> Iterator[str]:
    expected = answer_to(_question(transcript))
    uuid = ids.parse_response_id(body["id"])
    texts = [part["text"] for item in body["output"] for part in item["content"]]
    if texts != [expected.reasoning, expected.text]:
        yield f"said {str(texts)[:300]}, not {expected.text[:100]!r}"
    elif uuid is not None and [item["id"] for item in body["output"]] != [
        ids.output_item_id(ids.REASONING_PREFIX, uuid, 0),
        ids.output_item_id(ids.MESSAGE_PREFIX, uuid, 1),
    ]:
        yield f"item ids {[item['id'] for item in body['output']]}"
    counts = (body["usage"]["input_tokens"], body["usage"]["output_tokens"])
    if counts != (expected.input_tokens, expected.output_tokens):
        yield f"it is told to have cost {counts}"
    deltas = "".join(
        event["delta"]
        for event in whole_stream(transcript)
        if event["type"] == "response.output_text.delta"
    )
    if transcript.ended and _is_whole(transcript) and deltas != expected.text:
        yield f"the deltas say {deltas[-100:]!r}"


def _booked(evidence: Evidence) -> Iterator[str]:
    record = evidence.record
    if record is None or record.status not in TERMINAL_STATUSES:
        return
    if _failed_mute(record):
        if record.usage:
            yield "what failed before its first output is booked"
    elif len(record.usage) != 1:
        yield f"{len(record.usage)} lines of usage"
    elif record.durable:
        log = entries_of(record)
        said = sum(len(entry.ids) for entry in log if isinstance(entry, Tokens))
        said -= sum(entry.voided for entry in log if isinstance(entry, Repair))
        said += sum(entry.output_tokens for entry in log if isinstance(entry, Compacted))
        if record.usage[0].output_tokens != said:
            yield f"{record.usage[0].output_tokens} output tokens are booked, the log has {said}"


def _failed_mute(record: Record) -> bool:
    if record.status != "failed":
        return False
    if record.durable:
        said = (Tokens, Compacted, ToolEnded)
        return not any(isinstance(entry, said) for entry in entries_of(record))
    usage = orjson.loads(record.body or b"{}").get("usage")
    return usage is None or not usage["output_tokens"]


def _usage(evidence: Evidence) -> Iterator[str]:
    record = evidence.record
    if record is None or record.status != "completed":
        return
    for transcript, line in zip(evidence.transcripts, record.usage, strict=False):
        expected = answer_to(_question(transcript))
        counted = (line.input_tokens, line.output_tokens)
        if counted != (expected.input_tokens, expected.output_tokens):
            yield f"{counted} tokens are booked for {expected.input_tokens, expected.output_tokens}"


def _question(transcript: Transcript) -> Question:
    assert isinstance(transcript.question, Question), "only its answer is known beforehand"
    return transcript.question


Rule = Callable[[Evidence], Iterator[str]]
Rules = Mapping[str, Rule]

COMMON: Final[Rules] = {
    "numbered": _numbered,
    "agreed": _agreed,
    "terminal": _terminal,
    "gapless": _gapless,
    "refused": _refused,
    "missing": _missing,
    "entries": _entries,
    "epochs": _epochs,
    "folds": _folds,
    "logged": _logged,
    "status": _status,
    "body": _body,
    "booked": _booked,
}
"""What holds whatever was asked."""
RULES: Final[Rules] = {**COMMON, "answer": _answer, "usage": _usage}
"""Every rule by the name that its anomalies carry; each yields what it finds."""


def summary(anomalies: Iterable[Anomaly]) -> dict[str, int]:
    """How many there are of each rule."""
    return dict(Counter(anomaly.rule for anomaly in anomalies))


def _streams(evidence: Evidence) -> Iterator[Connection]:
    for transcript in evidence.transcripts:
        yield from (one for one in transcript.connections if one.frames or one.done)


def _endings(evidence: Evidence) -> Iterator[dict[str, Any]]:
    for connection in _streams(evidence):
        yield from filter(is_terminal, connection.events()[-1:])


def bodies(evidence: Evidence) -> list[dict[str, Any]]:
    """Every form of the end that exists: as it was told, and as it is stored."""
    told = [ending["response"] for ending in _endings(evidence)]
    record = evidence.record
    return [*told, orjson.loads(record.body)] if record is not None and record.body else told


def whole_stream(transcript: Transcript) -> list[dict[str, Any]]:
    """What the reader has heard, every event once, in order."""
    events = {
        event["sequence_number"]: event
        for connection in transcript.connections
        for event in connection.events()
    }
    return [events[number] for number in sorted(events)]


def _is_whole(transcript: Transcript) -> bool:
    return any(connection.after == -1 for connection in transcript.connections)


def _brief(numbers: Sequence[int]) -> str:
    """Around the first place where they do not go up by one, or down."""
    for place, (one, following) in enumerate(pairwise(numbers)):
        if following != one + 1:
            return f"…{numbers[max(place - 2, 0) : place + 4]}…"
    return str(numbers[:4])
