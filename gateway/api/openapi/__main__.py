"""`make openapi`: write the packaged document anew."""

from __future__ import annotations

from pathlib import Path

from gateway.api.openapi.document import document, encoded
from gateway.api.openapi.endpoints import FILE

Path(__file__).with_name(FILE).write_bytes(encoded(document()))
