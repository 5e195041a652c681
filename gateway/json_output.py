"""JSON as bytes: to be kept, and on one line."""

from __future__ import annotations

import orjson


def lasting_json(value: object) -> bytes:
    """Return `value` as JSON to be kept.

    It is a copy, because the bytes that orjson returns hold 4 KiB, however short they are.
    """
    return b"%b" % orjson.dumps(value)


def one_line(text: bytes) -> bytes:
    """Escape each character that could end a line, however a reader splits text into lines.

    U+2028, U+2029 and U+0085 end no line of server-sent events or JSON Lines, but do for
    `str.splitlines` and line readers of HTTP clients made of it.
    """
    if text.isascii():
        return text
    # The first bytes of the three: to look for one byte takes next to no time.
    if 0xE2 in text:
        text = text.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    if 0xC2 in text:
        text = text.replace(b"\xc2\x85", rb"\u0085")
    return text
