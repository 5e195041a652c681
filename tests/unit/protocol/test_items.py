"""Items on their own, outside of a request."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.protocol.items import Message


@pytest.mark.parametrize("value", ["text", 1, None, []])
def test_what_is_no_object_is_no_message(value: object) -> None:
    with pytest.raises(ValidationError):
        Message.model_validate(value)
