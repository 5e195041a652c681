"""The audit log: what an entry says, and that a chain tells what was done to it."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit import (
    BEGINNING,
    OPENAI_TYPES,
    Actor,
    AuditEntry,
    AuditEvent,
    ChainCheck,
    Head,
    entry_of,
    shown,
    trimmed,
)

TENANT = UUID(int=7)
AT = datetime(2026, 11, 23, 17, 0, 0, 123456, tzinfo=UTC)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
events = st.builds(
    AuditEvent,
    type=st.sampled_from(sorted(OPENAI_TYPES)),
    target=texts,
    actor=st.builds(
        Actor, kind=st.sampled_from(["api_key", "session", "operator"]), email=st.none() | texts
    ),
    details=st.dictionaries(texts, st.integers(0, 9) | texts, max_size=2),
    project_id=st.none() | st.uuids(),
    address=st.none() | texts,
    request_id=st.none() | texts,
)


def chain_of(some: list[AuditEvent]) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    previous = BEGINNING
    for number, event in enumerate(some, 1):
        at = AT + timedelta(seconds=number)
        entry = entry_of(event, TENANT, number, UUID(int=number), at, previous)
        entries.append(entry)
        previous = entry.hash
    return entries


def faults(entries: list[AuditEntry]) -> list[str]:
    checked = ChainCheck()
    checked.add(entries)
    return checked.faults


@pytest.mark.slow
@given(st.lists(events, min_size=1, max_size=6), st.data())
def test_a_chain_holds_until_an_entry_is_changed_or_left_out(
    some: list[AuditEvent], data: st.DataObject
) -> None:
    entries = chain_of(some)
    assert faults(entries) == []
    at = data.draw(st.integers(0, len(entries) - 1))
    changed: dict[str, Any] = data.draw(
        st.sampled_from(
            [
                {"target": entries[at].target + "x"},
                {"actor": entries[at].actor + b" "},
                {"details": b"{}x"},
                {"at": entries[at].at + timedelta(microseconds=1)},
                {"address": (entries[at].address or "") + "1"},
                {"tenant_id": UUID(int=8)},
                {"id": UUID(int=999)},
            ]
        )
    )
    edited = [*entries]
    edited[at] = replace(entries[at], **changed)
    assert faults(edited) == [f"entry {at + 1} was changed"]
    # Whoever hashes anew what they changed breaks the link to the next one.
    edited[at] = replace(edited[at], hash=edited[at].digest())
    is_last = at == len(entries) - 1
    assert faults(edited) == (
        [] if is_last else [f"entry {at + 2} does not follow on the one before"]
    )
    if 0 < at < len(entries) - 1:
        assert faults(entries[:at] + entries[at + 1 :]) == [
            f"entries {at + 1} to {at + 1} are gone"
        ]


@pytest.mark.slow
@given(st.lists(events, min_size=2, max_size=6), st.data())
def test_heads_that_were_kept_tell_what_was_cut_off_or_made_anew(
    some: list[AuditEvent], data: st.DataObject
) -> None:
    entries = chain_of(some)
    at = data.draw(st.integers(2, len(entries)))

    def found(there: list[AuditEntry]) -> list[str]:
        checked = ChainCheck([Head(at, entries[at - 1].hash)])
        checked.add(there)
        return checked.faults

    assert found(entries) == found(trim(entries, at - 1)) == []
    assert found(entries[: at - 1]) == [f"entries {at} to {at} are gone"]
    assert found([]) == [f"entries 1 to {at} are gone"]
    anew = chain_of([replace(one, target=f"{one.target}x") for one in some])
    assert faults(anew) == []
    assert found(anew) == [f"entry {at} is another one than it was"]


def test_entries_that_are_said_to_be_removed_must_have_been_old_enough() -> None:
    """Whoever can write to the table can say of any entry that retention removed it."""
    entries = chain_of([AuditEvent("project.created", f"p{n}") for n in range(6)])
    heads = [Head(one.number, one.hash, one.at) for one in entries[1:5]]
    unknown = [one._replace(at=None) for one in heads]

    def found(upto: int, kept: list[Head]) -> list[str]:
        checked = ChainCheck(kept, keeps_since=entries[2].at)
        checked.add(trim(entries, upto))
        return checked.faults

    assert found(2, heads) == found(6, heads[:1]) == found(6, unknown) == []
    assert found(3, heads) == ["entry 3 was removed before its time"]
    assert found(6, heads) == ["entry 5 was removed before its time"]


def trim(entries: list[AuditEntry], upto: int) -> list[AuditEntry]:
    """As retention removes the oldest ones, up to this number."""
    (last,) = [one for one in entries if one.number == upto]
    newest = entries[-1]
    added = entry_of(
        trimmed(TENANT, upto, last.hash),
        TENANT,
        newest.number + 1,
        UUID(int=newest.number + 1),
        newest.at,
        newest.hash,
    )
    return [*entries[upto + 1 - entries[0].number :], added]


@pytest.mark.slow
@given(st.lists(events, min_size=1, max_size=6), st.data())
def test_what_retention_removed_is_told_from_what_others_did(
    some: list[AuditEvent], data: st.DataObject
) -> None:
    """Whatever was removed as it should be: cut, swap or change more, and it shows."""
    entries = chain_of(some)
    for _ in range(data.draw(st.integers(0, 3))):
        upto = data.draw(st.integers(entries[0].number, entries[-1].number))
        entries = trim(entries, upto)
        assert faults(entries) == []
    count = len(entries)
    cut = data.draw(st.integers(1, count))
    if cut < count:
        assert faults(entries[cut:])
        begin = data.draw(st.integers(0, count - cut - 1))
        assert faults(entries[:begin] + entries[begin + cut :])
    if count > 1:
        one, other = sorted(data.draw(st.permutations(range(count)))[:2])
        swapped = [*entries]
        swapped[one], swapped[other] = entries[other], entries[one]
        assert faults(swapped)
        # Renumbered, too, and hashed anew.
        moved = [
            replace(entry, number=entries[at].number, previous=entries[at].previous)
            for at, entry in enumerate(swapped)
        ]
        moved = [replace(entry, hash=entry.digest()) for entry in moved]
        if moved != entries and one + 1 < count:
            assert faults(moved)
        put_in = entries[: one + 1] + entries[one:]
        assert faults(put_in)


def test_an_entry_of_a_removal_that_says_nothing_is_told() -> None:
    event = AuditEvent("harmony.audit_log.trimmed", "x", details={"data": {"number": "x"}})
    assert faults(chain_of([event])) == ["entry 1 does not say what was removed"]


def test_entries_that_are_there_again_are_told() -> None:
    entries = chain_of([AuditEvent("project.created", f"p{n}") for n in range(4)])
    kept = trim(entries, 3)
    assert faults(kept) == []
    assert faults([entries[2], *kept]) == ["entries up to 3 were removed, and some are there again"]
    other = replace(kept[0], previous=bytes(32))
    assert faults([replace(other, hash=other.digest()), *kept[1:]])[0] == (
        "entry 4 does not follow on what was before"
    )


def test_fields_do_not_run_into_each_other() -> None:
    event = AuditEvent("project.created", "ab", address="c")
    other = AuditEvent("project.created", "a", address="bc")
    one, two = (entry_of(each, TENANT, 1, TENANT, AT, BEGINNING) for each in (event, other))
    assert one.hash != two.hash


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="no type"):
        AuditEvent("project.exploded", "x")


@pytest.mark.parametrize(
    ("actor", "expected"),
    [
        (Actor(), {"type": "api_key", "api_key": {"id": None}}),
        (
            Actor("api_key", "key_1", "service_account", "sa_1"),
            {
                "type": "api_key",
                "api_key": {
                    "id": "key_1",
                    "type": "service_account",
                    "service_account": {"id": "sa_1"},
                },
            },
        ),
        (
            Actor("api_key", "key_1", "user", "user_1", "a@b.example"),
            {
                "type": "api_key",
                "api_key": {
                    "id": "key_1",
                    "type": "user",
                    "user": {"id": "user_1", "email": "a@b.example"},
                },
            },
        ),
        (
            Actor("session", owner_id="user_1", email="a@b.example"),
            {
                "type": "session",
                "session": {
                    "ip_address": "192.0.2.1",
                    "user": {"id": "user_1", "email": "a@b.example"},
                },
            },
        ),
    ],
)
def test_an_entry_is_shown_as_openai_shows_it(actor: Actor, expected: object) -> None:
    from openai.types.admin.organization import AuditLogListResponse

    event = AuditEvent(
        "project.created",
        "proj_1",
        actor,
        {"data": {"name": "n", "title": "t"}},
        address="192.0.2.1",
    )
    entry = entry_of(event, TENANT, 1, UUID(int=1), AT, BEGINNING)
    told = shown(entry, entry_id="audit_log-1", project={"id": "proj_1", "name": "n"})
    assert told["actor"] == expected
    assert told["effective_at"] == int(AT.timestamp())
    read = AuditLogListResponse.model_validate(told, strict=True)
    assert read.project_created is not None
    assert read.project_created.id == "proj_1"
    assert read.project_created.data is not None
    assert read.project_created.data.name == "n"
    assert "project" not in shown(entry, entry_id="x", project=None)


def test_all_of_an_entry_is_in_its_digest_and_what_it_follows_on_is_too() -> None:
    event = AuditEvent("project.created", "p", project_id=TENANT, address="a", request_id="r")
    entry = entry_of(event, TENANT, 7, UUID(int=1), AT, bytes([1]) * 32)
    changed: dict[str, Any] = {
        "tenant_id": UUID(int=8),
        "number": 8,
        "id": UUID(int=2),
        "at": AT + timedelta(microseconds=1),
        "type": "project.deleted",
        "actor": b"{}",
        "target": "q",
        "project_id": None,
        "address": "b",
        "request_id": None,
        "details": b"[]",
        "previous": BEGINNING,
    }
    assert changed.keys() | {"hash"} == {one.name for one in fields(AuditEntry)}
    for name, value in changed.items():
        assert replace(entry, **{name: value}).digest() != entry.hash, name
    # A release that computes another digest breaks all chains that there are.
    assert entry.hash.hex() == ("a9ae0c860f02971f6d278c96e73c395eb244f81e255a2d123035c367289ef6bc")


def test_who_of_the_operators_it_was_is_for_operators() -> None:
    event = AuditEvent("harmony.tenant.updated", "t", Actor(owner_id="anna"), address="192.0.2.1")
    entry = entry_of(event, TENANT, 1, UUID(int=1), AT, BEGINNING)
    told = shown(entry, entry_id="x", project=None)
    assert "anna" not in str(told)
    assert "192.0.2.1" not in str(told)
    told = shown(entry, entry_id="x", project=None, names_operators=True)
    assert told["harmony"] == {"operator": "anna", "address": "192.0.2.1"}
