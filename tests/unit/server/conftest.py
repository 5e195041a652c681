"""Bounds of heads that are quick to reach."""

from __future__ import annotations

import pytest

from gateway.server import http_protocol
from gateway.server.request_parser import HeadBounds


@pytest.fixture
def short_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request have a head of 2,000 bytes and 20 fields."""
    monkeypatch.setattr(http_protocol, "HEAD_BOUNDS", HeadBounds(bytes_max=2000, fields_max=20))
