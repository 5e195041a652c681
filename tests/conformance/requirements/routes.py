"""Sections 1.4 to 1.7: what can be done with a response that there is."""

from __future__ import annotations

from tests.conformance.requirements.requirement import rules

RETRIEVAL = rules(
    "1.4",
    ("retrieve.body", "JSON", "A stored response is returned as it was sent when it ended."),
    (
        "background.snapshot",
        "JSON",
        "A running background response is returned as far as it has come.",
    ),
    (
        "retrieve.not-found",
        "JSON",
        "Unknown, unstored and deleted responses, and what a client still waits for, are a 404.",
    ),
    ("retrieve.query", "Query", "The query is checked, and what it gets wrong is named."),
    (
        "replay.only-background-streams",
        "replay: needs background and stream",
        "What was not created with background and stream cannot be streamed again.",
    ),
    ("replay.unstored", "replay: store false", "The stream of what is not stored is a 404."),
    (
        "replay.byte-identical",
        "replay: events after starting_after",
        "A stream is resumed after any event with the bytes that were sent before.",
    ),
    (
        "replay.nothing-left",
        "replay: N at or beyond the end",
        "At and beyond the end of a stream there is only the end mark.",
    ),
    (
        "replay.waits",
        "replay: tails live",
        "A reader that is ahead of a running stream waits for what comes after its place.",
    ),
    (
        "replay.snapshots",
        "replay: events are snapshots",
        "A replayed beginning shows the response as it was then, without output.",
    ),
    (
        "replay.expires",
        "replay: expiry",
        "When its log is no longer kept, a response is refused as a stream, and still returned.",
    ),
    (
        "replay.from-the-start",
        "replay: the stream helper",
        "Without a place the stream comes from its first event, as the SDK's helper needs it.",
    ),
    (
        "replay.place-without-stream",
        "starting_after without stream",
        "A place means nothing where no stream is asked for.",
    ),
    (
        "replay.place-is-checked",
        "starting_after not an integer, or negative",
        "A place is an integer from 0 on, or refused by the code of its mistake.",
    ),
    (
        "tenants.walls",
        "404",
        "What belongs to another tenant looks like what never existed, for every use.",
    ),
)
DELETION = rules(
    "1.5",
    ("delete.body", "200", "Deleting returns the id, the object and that it is deleted."),
    ("delete.unknown", "404", "What is unknown cannot be deleted."),
    (
        "background.in-flight-is-not-deleted",
        "in flight",
        "A background response in flight is not deleted.",
    ),
    ("delete.afterwards", "Afterwards", "What was deleted is a 404 for every later use."),
)
CANCELLATION = rules(
    "1.6",
    ("cancel.empty-body", "Empty body", "A cancellation needs no body, whatever its type says."),
    ("cancel.queued", "queued", "A queued background response is cancelled before it begins."),
    (
        "cancel.running",
        "in_progress",
        "A running background response is cancelled and keeps what it had said.",
    ),
    ("cancel.twice", "cancelled", "Cancelling twice returns the same response."),
    (
        "cancel.finished",
        "completed / failed / incomplete",
        "What has ended, and what is synchronous, cannot be cancelled.",
    ),
    (
        "cancel.synchronous",
        "finished, false",
        "That it is synchronous is said before that it is over.",
    ),
    ("cancel.not-there-yet", "running, false", "What a client still waits for is a 404."),
    ("cancel.unknown", "unknown", "What is unknown cannot be cancelled."),
    (
        "cancel.streams-end",
        "Live/replayed streams",
        "The streams of a cancelled response end with response.failed of status cancelled.",
    ),
    (
        "cancel.wins-once",
        "races a completion",
        "Whichever end is stored first stays: a cancellation, or a completion.",
    ),
    ("replicas.cancel", "in_progress", "Any replica cancels what another generates."),
)
INPUT_ITEMS = rules(
    "1.7",
    ("input-items.limit", "limit", "A page has 20 items unless it says from 1 to 100."),
    ("input-items.order", "order", "The latest item comes first, unless the order is asc."),
    ("input-items.after", "after", "A page begins behind an item that is in the list."),
    ("input-items.include", "include[]", "The documented values are accepted, and no other."),
    (
        "input-items.body",
        "Body",
        "A page is a list with the ids of its first and last item, and whether there are more.",
    ),
    (
        "input-items.ids",
        "SDK pager",
        "Every item has an id, and paging one by one shows each of them once.",
    ),
    (
        "input-items.whole-context",
        "Items include history",
        "The list has what was continued and what was sent, without the instructions.",
    ),
    (
        "background.input-items",
        "from creation",
        "The input of a background response is listed while it runs.",
    ),
)
ROUTES = (*RETRIEVAL, *DELETION, *CANCELLATION, *INPUT_ITEMS)
