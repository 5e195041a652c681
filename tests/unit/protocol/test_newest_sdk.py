"""The comparison with a newer SDK, whose warnings nobody may miss."""

from __future__ import annotations

import pytest

from tests.conformance import newest_sdk


@pytest.mark.slow
def test_fields_within_fields_are_seen() -> None:
    fields = newest_sdk.sdk_fields()
    assert "ResponseCreateParamsBase.prompt_cache_options.prewarm" in fields
    assert "Response.prompt_cache_diagnostics<cache_miss>.reason" in fields


def test_of_a_new_object_the_name_is_enough() -> None:
    shown = newest_sdk.new_fields({"A.b", "A.b.c", "A.d"}, {"A.d"}, known={"A.x"})
    assert shown == ["A.b"]
    assert newest_sdk.new_fields({"A.x", "A.x.y"}, set(), known={"A.x"}) == []
