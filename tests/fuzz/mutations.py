"""What is done to a good request, so that it is a bad one: to its values, and to its bytes."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

Slot = tuple[dict[str, Any] | list[Any], Any]
"""A container and the key or index of one of its values."""

ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, -(10**40), 1e308, 5e-324, -0.0, 1.5),
    *(
        "",
        "x",
        "\0",
        "a\0b",
        "\ud800",
        "\udfff\ud800",
        "x" * 5000,
        "\u202e",
        "null",
        "1",
        "ﷺ" * 300,
    ),
    *([], {}, [[]], [None], {"": None}, {"type": "message"}, {"type": "nonsense"}, {"id": "rs_x"}),
    *([{}] * 70, {"a" * 600: "b"}, {"type": ["message"]}, {"type": None}, {"role": "user"}),
)
DEEP: Final = 200
SLOT_DEPTH_MAX: Final = 12
WIDE: Final = 3000


def mutate(dice: random.Random, document: dict[str, Any]) -> None:
    """Change one to four of its values, keys or places."""
    for _ in range(dice.randrange(1, 5)):
        slots = list(_slots(document))
        if not slots:
            return
        container, place = dice.choice(slots)
        dice.choice(_CHANGES)(dice, container, place)


def _slots(document: dict[str, Any]) -> Iterator[Slot]:
    """Those near enough to the top that what is nested there can still be encoded."""
    pending: list[tuple[Any, int]] = [(document, 0)]
    while pending:
        value, depth = pending.pop()
        if not isinstance(value, dict | list) or depth > SLOT_DEPTH_MAX:
            continue
        places = list(value) if isinstance(value, dict) else range(len(value))
        for place in places:
            yield value, place
            pending.append((value[place], depth + 1))


def _replace(dice: random.Random, container: Any, place: Any) -> None:
    container[place] = deepcopy(dice.choice(ODD))


def _remove(_: random.Random, container: Any, place: Any) -> None:
    del container[place]


def _repeat(dice: random.Random, container: Any, place: Any) -> None:
    if isinstance(container, list):
        container.extend([container[place]] * dice.randrange(1, 20))
    else:
        container[f"{place}{dice.randrange(9)}"] = container[place]


def _wrap(dice: random.Random, container: Any, place: Any) -> None:
    value = container[place]
    container[place] = dice.choice(([value], {"type": value}, {"value": value}, str(value)[:2000]))


def _nest(dice: random.Random, container: Any, place: Any) -> None:
    value = container[place]
    for _ in range(dice.choice((5, 40, DEEP))):
        value = [value] if dice.random() < 0.5 else {"a": value}
    container[place] = value


def _widen(dice: random.Random, container: Any, place: Any) -> None:
    container[place] = [dice.choice(ODD[:8])] * WIDE


_CHANGES: Final[tuple[Callable[[random.Random, Any, Any], None], ...]] = (
    *(_replace,) * 8,
    *(_remove,) * 3,
    *(_repeat, _wrap, _nest, _widen),
)


def encoded(dice: random.Random, document: Any) -> bytes:
    """Its JSON, now and then spelled as no library would."""
    body = json.dumps(document, ensure_ascii=dice.random() < 0.7).encode(errors="surrogatepass")
    if dice.random() > 0.12:
        return body
    return dice.choice(_DAMAGES)(dice, body)


def _cut(dice: random.Random, body: bytes) -> bytes:
    return body[: dice.randrange(len(body) + 1)]


def _flip(dice: random.Random, body: bytes) -> bytes:
    damaged = bytearray(body or b"x")
    for _ in range(dice.randrange(1, 6)):
        damaged[dice.randrange(len(damaged))] = dice.randrange(256)
    return bytes(damaged)


def _twice(_: random.Random, body: bytes) -> bytes:
    """Every key of the top level is there twice."""
    return body[:-1] + b"," + body[1:] if body[:1] == b"{" and len(body) > 2 else body * 2


def _odd_words(dice: random.Random, body: bytes) -> bytes:
    word = dice.choice(
        (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"01", b"'x'", b"\xff", b"9" * 9999)
    )
    return body.replace(b"1", word, 1).replace(b"null", word, 1)


def _escapes(dice: random.Random, body: bytes) -> bytes:
    escape = dice.choice((rb"\ud800", rb"\u0000", rb"\udc00\ud800", rb"\u12", rb"\x00", b"\x00"))
    return body.replace(b'"', b'"' + escape, dice.randrange(1, 30))


def _framed(dice: random.Random, body: bytes) -> bytes:
    return dice.choice(
        (b"\xef\xbb\xbf" + body, b" " * 5000 + body, body + b"\n{}", b"[" + body + b"]")
    )


def _brackets(dice: random.Random, _: bytes) -> bytes:
    return dice.choice((b"[", b'{"a":')) * dice.choice((200, 20_000, 200_000))


_DAMAGES: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    *(_cut, _flip, _twice, _odd_words, _escapes, _framed, _brackets),
)
