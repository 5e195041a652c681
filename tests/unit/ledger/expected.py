"""What is refused of a question about usage."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admin.usage import usage_query
from gateway.errors import InvalidRequest


def refusal_of(report: Any, asked: list[tuple[str, str]]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        usage_query(report, asked, now=1_790_000_000)
    return caught.value
