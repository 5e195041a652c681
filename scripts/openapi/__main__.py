"""`make openapi`: write the packaged documents anew."""

from __future__ import annotations

from pathlib import Path

import gateway.api.openapi
from gateway.api.openapi.endpoints import ADMIN_FILE, FILE
from scripts.openapi.admin_listener import admin_document
from scripts.openapi.generate import document, encoded

FOLDER = Path(gateway.api.openapi.__file__).parent

(FOLDER / FILE).write_bytes(encoded(document()))
(FOLDER / ADMIN_FILE).write_bytes(encoded(admin_document()))
