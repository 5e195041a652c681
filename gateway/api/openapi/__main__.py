"""`make openapi`: write the packaged documents anew."""

from __future__ import annotations

from pathlib import Path

from gateway.admin.openapi import admin_document
from gateway.api.openapi.endpoints import ADMIN_FILE, FILE
from gateway.api.openapi.generate import document, encoded

Path(__file__).with_name(FILE).write_bytes(encoded(document()))
Path(__file__).with_name(ADMIN_FILE).write_bytes(encoded(admin_document()))
