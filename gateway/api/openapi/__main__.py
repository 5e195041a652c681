"""`make openapi`: write the packaged document anew."""

from __future__ import annotations

from pathlib import Path

from gateway.api.openapi.endpoints import FILE
from gateway.api.openapi.generate import document, encoded

Path(__file__).with_name(FILE).write_bytes(encoded(document()))
