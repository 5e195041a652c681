"""Templates and their filters; scripts and styles.

What a page shows may come from a client or a model: all is escaped, and characters that hide or
reorder text are shown by their numbers.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from gateway.errors import ResourceNotFound, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER: Final = Path(__file__).parent / "templates"
_HIDING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Controls, directions of writing, characters without a width, and surrogates."""
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_COMPACT: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def visible(value: object) -> object:
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _HIDING.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", value)


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds > 0 else "< 1 s"
    size, unit = next((size, unit) for size, unit in _SPANS if seconds >= size)
    amount = seconds / size
    return f"{amount:.1f} {unit}" if unit == "s" and amount < 10 else f"{int(amount)} {unit}"


def ago(second: float) -> str:
    past_s = time.time() - second
    if abs(past_s) < 1:
        return "now"
    return f"{duration(past_s)} ago" if past_s > 0 else f"in {duration(-past_s)}"


def utc(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(second: float) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")


def count(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.1f}"


def compact(number: float) -> str:
    for size, unit in _COMPACT:
        if abs(number) >= size:
            scaled = number / size
            return f"{scaled:.0f}{unit}" if scaled >= 100 else f"{scaled:.1f}{unit}"
    return count(number)


def short_id(public_id: str) -> str:
    """Return prefix and last characters, which tell an id from its neighbours."""
    prefix, mark, rest = public_id.partition("_")
    return f"{prefix}_…{rest[-8:]}" if mark and len(rest) > 12 else public_id


class Templates:
    def __init__(self, **shared: object) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=visible,
        )
        self._environment.globals.update(shared)
        self._environment.filters.update(
            ago=ago, utc=utc, iso=iso, count=count, compact=compact, duration=duration,
            short_id=short_id,
        )  # fmt: skip

    def page(self, template: str, context: Mapping[str, Any]) -> str:
        return self._environment.get_template(template).render(context)

    def fragment(self, template: str, block: str, context: Mapping[str, Any]) -> str:
        loaded = self._environment.get_template(template)
        return "".join(loaded.blocks[block](loaded.new_context(dict(context))))


STATIC_FOLDER: Final = Path(__file__).parent / "static"
DIGEST_CHARS: Final = 12
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class StaticFiles:
    """Files in memory: they are few, and small."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._names: dict[str, str] = {}
        self._files: dict[str, tuple[bytes, str]] = {}
        for path in sorted(STATIC_FOLDER.rglob("*")):
            if path.suffix in _TYPES:
                content = path.read_bytes()
                digest = sha256(content).hexdigest()[:DIGEST_CHARS]
                name = f"{path.stem}.{digest}{path.suffix}"
                self._names[path.name] = name
                self._files[name] = (content, _TYPES[path.suffix])

    def url(self, name: str) -> str:
        return f"{self._base}/{self._names[name]}"

    def response(self, name: str) -> Response:
        if name not in self._files:
            raise ResourceNotFound(f"There is no file '{shown(name)}'.")
        content, media_type = self._files[name]
        lasting = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(content, headers=lasting, media_type=media_type)
