"""DNS messages: a question to a name server, and what of its answer is needed here. No I/O.

RFC 1035 for the format and A, RFC 3596 for AAAA, RFC 2782 for SRV.

    header    id (2 bytes), flags (2), number of questions, answers, authorities, additions (2 each)
    question  name, type (2), class (2)
    record    name, type (2), class (2), seconds to live (4), length (2), data
    name      parts, each its length (1) and its bytes, then 0; or 2 bytes that begin with two bits
              1, and are where in the message the rest of it stands
"""

from __future__ import annotations

import ipaddress
import struct
from typing import Final, NamedTuple

A: Final = 1
AAAA: Final = 28
SRV: Final = 33
TYPES: Final = {"A": A, "AAAA": AAAA, "SRV": SRV}

NO_ERROR: Final = 0
NO_SUCH_NAME: Final = 3
_IN: Final = 1
_HEADER: Final = struct.Struct(">HHHHHH")
_TWO: Final = struct.Struct(">HH")
_RECORD: Final = struct.Struct(">HHIH")
_SRV: Final = struct.Struct(">HHH")
_IS_ANSWER: Final = 0x8000
_TRUNCATED: Final = 0x0200
_RECURSE: Final = 0x0100
_POINTER: Final = 0xC0
_PART_BYTES_MAX: Final = 63
_NAME_BYTES_MAX: Final = 255


class DnsError(ValueError):
    """Not a DNS message, or not the answer to this question."""


class ServiceRecord(NamedTuple):
    """An SRV record: of those with the lowest priority one is to be chosen."""

    priority: int
    weight: int
    port: int
    target: str


class DnsAnswer(NamedTuple):
    """`code` is 0 where there was no error. Of a `truncated` one only that counts."""

    code: int
    truncated: bool
    addresses: tuple[str, ...]
    services: tuple[ServiceRecord, ...]


def question(id_: int, name: str, kind: int) -> bytes:
    """The message that asks for records of a kind. Raises `DnsError` for what is no name."""
    return _HEADER.pack(id_, _RECURSE, 1, 0, 0, 0) + _encoded(name) + _TWO.pack(kind, _IN)


def read_answer(message: bytes, asked: bytes) -> DnsAnswer:
    """What a name server says to the question `asked`. Raises `DnsError`."""
    try:
        return _read(message, asked)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DnsError("it is cut off, or damaged") from error


def _read(message: bytes, asked: bytes) -> DnsAnswer:
    id_, flags, questions, answers, _, _ = _HEADER.unpack_from(message)
    asked_id, _, _, _, _, _ = _HEADER.unpack_from(asked)
    code, truncated = flags & 0xF, bool(flags & _TRUNCATED)
    if id_ != asked_id or not flags & _IS_ANSWER:
        raise DnsError("it is not the answer to this question")
    if questions == 0 and code != NO_ERROR:
        return DnsAnswer(code, truncated, (), ())
    name, place = _name(asked, _HEADER.size)
    kind, _ = _TWO.unpack_from(asked, place)
    place = _HEADER.size
    for _ in range(questions):
        asked_name, place = _name(message, place)
        asked_kind, _ = _TWO.unpack_from(message, place)
        place += _TWO.size
        if asked_name.lower() != name.lower() or asked_kind != kind:
            raise DnsError("it is the answer to another question")
    if truncated:
        return DnsAnswer(code, truncated, (), ())
    addresses, services = [], []
    for _ in range(answers):
        # Of whatever name: one that is an alias has records under the name that it stands for.
        _, place = _name(message, place)
        record_kind, _, _, length = _RECORD.unpack_from(message, place)
        place += _RECORD.size
        data, end = message[place : place + length], place + length
        if len(data) < length:
            raise DnsError("it is cut off")
        if record_kind == kind == SRV:
            priority, weight, port = _SRV.unpack_from(data)
            target, _ = _name(message, place + _SRV.size)
            services.append(ServiceRecord(priority, weight, port, target))
        elif record_kind == kind:
            addresses.append(_address(data))
        place = end
    return DnsAnswer(code, truncated, tuple(addresses), tuple(services))


def _address(data: bytes) -> str:
    try:
        return str(ipaddress.ip_address(data))
    except ValueError as error:
        raise DnsError("it has an address of a wrong length") from error


def _encoded(name: str) -> bytes:
    parts = name.removesuffix(".").split(".")
    try:
        encoded = [part.encode("ascii") for part in parts]
    except UnicodeEncodeError as error:
        raise DnsError(f"{name!r} is no name of a host: write it in ASCII") from error
    if not all(0 < len(part) <= _PART_BYTES_MAX for part in encoded):
        raise DnsError(f"{name!r} is no name of a host")
    whole = b"".join(bytes([len(part)]) + part for part in encoded) + b"\0"
    if len(whole) > _NAME_BYTES_MAX:
        raise DnsError(f"{name!r} is too long")
    return whole


def _name(message: bytes, place: int) -> tuple[str, int]:
    """The name that begins at `place`, and where what follows it begins."""
    parts: list[str] = []
    end, before, size = 0, place + 1, 0
    while length := message[place]:
        if length & _POINTER == _POINTER:
            end = end or place + 2
            target = ((length & ~_POINTER) << 8) | message[place + 1]
            if target >= min(before, place):
                raise DnsError("a name of it leads forward")  # else it may never end
            before = place = target
            continue
        part = message[place + 1 : place + 1 + length]
        size += 1 + length
        if length > _PART_BYTES_MAX or size > _NAME_BYTES_MAX or len(part) < length:
            raise DnsError("it has a name that is none")
        parts.append(part.decode("ascii"))
        place += 1 + length
    return ".".join(parts), end or place + 1
