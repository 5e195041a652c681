"""The integers between two bounds, as a language of digits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.constraints.gbnf import NEVER, Chain, Chars, Times, chain, either, text

if TYPE_CHECKING:
    from gateway.constraints.gbnf import Language

_ZERO: Final = ord("0")


def between(low: int | None, high: int | None) -> Language:
    """Those from `low` to `high`, both included; None: without a bound."""
    natural = NEVER if high is not None and high < 0 else _natural(max(low or 0, 0), high)
    if low is not None and low >= 0:
        return natural
    nearest = 0 if high is None or high >= 0 else -high
    return either(natural, chain(text("-"), _natural(nearest, None if low is None else -low)))


def _natural(low: int, high: int | None) -> Language:
    first = str(low)
    if high is None:
        longer = chain(_digits(1, 9), Times(_digits(0, 9), len(first), None))
        return either(_as_long(first, "9" * len(first)), longer)
    if high < low:
        return NEVER
    last = str(high)
    return either(
        *(
            _as_long(
                first if size == len(first) else "1" + "0" * (size - 1),
                last if size == len(last) else "9" * size,
            )
            for size in range(len(first), len(last) + 1)
        )
    )


def _as_long(first: str, last: str) -> Language:
    """Those from one to another of the same length."""
    if not first:
        return Chain(())
    low, high, size = int(first[0]), int(last[0]), len(first) - 1
    if low == high:
        return chain(_digits(low, low), _as_long(first[1:], last[1:]))
    options = []
    if first[1:] != "0" * size:
        options.append(chain(_digits(low, low), _as_long(first[1:], "9" * size)))
        low += 1
    if last[1:] != "9" * size:
        options.append(chain(_digits(high, high), _as_long("0" * size, last[1:])))
        high -= 1
    if low <= high:
        options.append(chain(_digits(low, high), Times(_digits(0, 9), size, size)))
    return either(*options)


def _digits(low: int, high: int) -> Language:
    return Chars(((_ZERO + low, _ZERO + high),))
