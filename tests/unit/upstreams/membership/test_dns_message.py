"""Answers of name servers are read, whatever bytes they are."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstreams.membership.dns_message import AAAA, SRV, A, DnsError, question, read_answer
from tests.fakes.dns_server import DnsServer, labels, record

LABEL = st.text("abcxyz0-9_", min_size=1, max_size=20)
HOST = st.lists(LABEL, min_size=1, max_size=6).map(".".join)
ADDRESSES = st.lists(st.ip_addresses(v=4).map(str), max_size=8)


@given(HOST, ADDRESSES, st.integers(0, 65535))
def test_addresses_come_back(name: str, addresses: list[str], id_: int) -> None:
    server = DnsServer({(name, "A"): list(addresses)})
    asked = question(id_, name, A)
    answer = read_answer(server.answer(asked, "tcp") or b"", asked)
    assert list(answer.addresses) == addresses
    assert answer.code == 0


@given(HOST, st.lists(st.tuples(*[st.integers(0, 65535)] * 3, HOST), max_size=6))
def test_services_come_back(name: str, rows: list[tuple[int, int, int, str]]) -> None:
    server = DnsServer({(name, "SRV"): list(rows)})
    asked = question(7, name, SRV)
    answer = read_answer(server.answer(asked, "tcp") or b"", asked)
    assert [tuple(one) for one in answer.services] == rows


@given(st.binary(max_size=80), st.integers(0, 200), st.integers(0, 255))
def test_no_bytes_do_anything_but_be_read_or_refused(noise: bytes, place: int, byte: int) -> None:
    server = DnsServer({("a.example", "A"): ["10.0.0.1", "10.0.0.2"]})
    asked = question(7, "a.example", A)
    whole = bytearray(server.answer(asked, "tcp") or b"")
    whole[place % len(whole)] = byte
    for message in (noise, bytes(whole), bytes(whole)[: place % len(whole)], bytes(whole) + noise):
        try:
            read_answer(message, asked)
        except DnsError:
            continue


def test_a_name_that_leads_to_itself_is_refused() -> None:
    asked = question(7, "a", A)
    header = struct.pack(">HHHHHH", 7, 0x8180, 1, 1, 0, 0)
    place = 12 + len(labels("a")) + 4
    loop = struct.pack(">H", 0xC000 | place)
    message = header + asked[12:] + record(A, b"\x0a\0\0\x01", name=loop)
    with pytest.raises(DnsError, match="leads forward"):
        read_answer(message, asked)


def test_records_of_an_alias_count() -> None:
    asked = question(7, "a", A)
    header = struct.pack(">HHHHHH", 7, 0x8180, 1, 2, 0, 0)
    alias = record(5, labels("b"))
    address = record(A, b"\x0a\0\0\x01", name=labels("b"))
    assert read_answer(header + asked[12:] + alias + address, asked).addresses == ("10.0.0.1",)


@pytest.mark.parametrize("change", ["id", "question", "kind", "is_question"])
def test_the_answer_to_another_question_is_refused(change: str) -> None:
    server = DnsServer({("a", "A"): ["10.0.0.1"], ("b", "A"): ["10.0.0.9"]})
    asked = question(7, "a", A)
    other = {
        "id": question(8, "a", A),
        "question": question(7, "b", A),
        "kind": question(7, "a", AAAA),
        "is_question": asked,
    }[change]
    message = asked if change == "is_question" else server.answer(other, "udp") or b""
    with pytest.raises(DnsError):
        read_answer(message, asked)


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64, ".".join(["x" * 60] * 5), "ü.example"])
def test_what_is_no_name_is_not_asked_for(name: str) -> None:
    with pytest.raises(DnsError):
        question(1, name, A)


def test_an_address_of_a_wrong_length_is_refused() -> None:
    asked = question(7, "a", A)
    header = struct.pack(">HHHHHH", 7, 0x8180, 1, 1, 0, 0)
    with pytest.raises(DnsError, match="length"):
        read_answer(header + asked[12:] + record(A, b"\x0a\0"), asked)
