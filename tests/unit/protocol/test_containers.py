from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.protocol.container_bodies import (
    MEMORY_LIMITS,
    PURPOSES,
    check_file_name,
    deleted,
    expired_container,
    memory_limit_of,
    parse_container,
    parse_container_file,
    parse_upload,
    unknown_container,
    unknown_file,
)
from tests.fakes.cases import each
from tests.fakes.create_bodies import LIMITS


def container(strict: bool = False, **fields: Any) -> Any:
    body = orjson.dumps({"name": "n", **fields})
    return parse_container(body, limits=LIMITS, strict=strict)


def test_defaults_and_nulls() -> None:
    made = container(file_ids=None, skills=[], memory_limit=None)
    assert (made.file_ids, made.memory_limit, made.expires_after.minutes) == ((), "1g", 20)
    assert container(strict=True, skills=None).name == "n"
    asked = parse_container_file(b'{"file_id": "file-1"}', limits=LIMITS)
    assert asked.file_id == "file-1"


def test_what_means_nothing_is_named() -> None:
    sent: dict[str, Any] = {"skills": None, "other": 1, "ignored": ["x"], "a: b\n": 1}
    made = container(**sent)
    assert made.ignored == ("other", "ignored")
    assert container().ignored == ()
    asked = parse_container_file(b'{"file_id": "file-1", "file": 1}', limits=LIMITS)
    assert asked.ignored == ("file",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"skills": [{"id": "s"}]}, "skills"),
        ({"network_policy": {"type": "allowlist"}}, "network_policy.type"),
        ({"network_policy": {"type": "open"}}, "network_policy.type"),
        ({"memory_limit": "1gb"}, "memory_limit"),
        ({"other": 1}, "other"),
        ({"expires_after": {"anchor": "created_at", "minutes": 1}}, "expires_after.anchor"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        container(strict=True, **fields)
    assert caught.value.param == param


@each(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "x"}, "purpose"),
        ({"expires_after[anchor]": "x"}, "expires_after.anchor"),
        ({"expires_after[seconds]": "9999"}, "expires_after.anchor"),
        ({"expires_after[anchor]": "created_at"}, "expires_after.seconds"),
        *(
            (
                {"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds},
                "expires_after.seconds",
            )
            for seconds in ("", "-1", "²", "1" * 10, "3599", "2592001")
        ),
    ],
)
def test_forms_that_are_refused(fields: dict[str, str], param: str) -> None:
    known = {} if param == "purpose" else {"purpose": PURPOSES[0]}
    with pytest.raises(InvalidRequest) as caught:
        parse_upload({**known, **fields})
    assert caught.value.param == param


@given(st.sampled_from(PURPOSES), st.none() | st.integers(3600, 2_592_000))
def test_forms_that_are_taken(purpose: str, seconds: int | None) -> None:
    fields = {"purpose": purpose}
    if seconds is not None:
        fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(seconds)}
    assert parse_upload(fields) == (purpose, seconds)


@given(st.text())
def test_a_name_is_one_part_of_a_path_or_refused(name: str) -> None:
    with suppress(InvalidRequest):
        checked = check_file_name(name)
        assert name.endswith(checked)
        assert 0 < len(checked) <= 256
        assert not {"/", "\\", "\0", "\n"} & set(checked)
        assert checked not in {".", ".."}


def test_a_name_that_is_too_long() -> None:
    assert check_file_name("C:\\x\\a.txt") == "a.txt"
    with pytest.raises(InvalidRequest, match="maximum length 256"):
        check_file_name("x" * 257)


def test_what_is_said_of_what_is_not_there() -> None:
    assert memory_limit_of(MEMORY_LIMITS["4g"]) == "4g"
    assert memory_limit_of(1) is None
    assert expired_container("cntr_1", param="p").code == "container_expired"
    assert "cntr_1" in unknown_container("cntr_1").message
    assert unknown_file("f", param="p").param == "p"
    assert deleted("file", "f") == {"id": "f", "object": "file", "deleted": True}
