"""Scripts and styles; browsers keep them, for their names have digests of their content."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.responses import Response

from gateway.errors import ResourceNotFound, shown

FOLDER: Final = Path(__file__).parent / "static"
DIGEST_CHARS: Final = 12
_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


class StaticFiles:
    """Files in memory: they are few, and small."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._names: dict[str, str] = {}
        self._files: dict[str, tuple[bytes, str]] = {}
        for path in sorted(FOLDER.rglob("*")):
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
