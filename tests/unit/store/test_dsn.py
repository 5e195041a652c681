from __future__ import annotations

import pytest

from gateway.errors import StartupError
from gateway.store.postgres.driver import driver_url
from tests.fakes.cases import each


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+asyncpg"])
def test_every_usual_scheme_is_understood(scheme: str) -> None:
    assert driver_url(f"{scheme}://u:p@h:5433/d") == "postgresql://u:p@h:5433/d"


@each(
    ("given", "expected"),
    [
        ("postgresql:///d?host=/run/pg", "postgresql:///d?host=%2Frun%2Fpg"),
        ("postgresql://u@/d?host=/a%20b&port=1", "postgresql://u@/d?host=%2Fa%20b&port=1"),
        ("postgresql://u:p%40@h1:1,h2:2/d", "postgresql://u:p%40@h1:1,h2:2/d"),
        ("postgresql://[::1]:5432/d", "postgresql://[::1]:5432/d"),
        ("postgresql://h:/d", "postgresql://h:/d"),
        ("postgresql://h.:1/d", "postgresql://h.:1/d"),
        (f"postgresql://%2f{'a' * 64}/d", f"postgresql://%2f{'a' * 64}/d"),
        ("postgresql://u@[::1],h2:5433/d", "postgresql://u@[::1],h2:5433/d"),
        ("postgres://h/d?ssl=require", "postgresql://h/d?sslmode=require"),
        ("postgres://h/d?sslmode=verify-full", "postgresql://h/d?sslmode=verify-full"),
        ("postgres://h/d?channel_binding=prefer", "postgresql://h/d"),
        ("postgres://h/d?connect_timeout=3&keepalives=1&application_name=x",
         "postgresql://h/d?application_name=x"),
        ("postgres://h/d?options=-c%20search_path%3Dg",
         "postgresql://h/d?options=-c%20search_path%3Dg"),
    ],
)  # fmt: skip
def test_options_reach_the_driver_in_its_spelling(given: str, expected: str) -> None:
    assert driver_url(given) == expected


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "sqlite:///x", "", "host=h user=u"])
def test_another_kind_of_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(StartupError, match="cannot start with") as caught:
        driver_url(url)
    assert "secret" not in str(caught.value)


@each(
    "url",
    [
        "postgresql://u:can[ary@h/d",
        "postgresql://u:can/ary@h/d",
        "postgresql://u:can#ary@h/d",
        "postgresql://u:can?ary@h/d",
        "postgresql://u:canary@h:99999/d",
        "postgresql://u:canary@h:0/d",
        "postgresql://u:canary@h1:5432,h2:x/d",
        "postgresql://u:canary@[::1]:x/d",
        "postgresql:///d?host=/run&password=canary&port=x",
        "postgresql://u:canary@h1:5432,db..internal/d",
        f"postgresql:///d?host={'h' * 64}&password=canary",
        "postgresql:///d?host=h1,h2&password=canary&port=5432,99999",
    ],
)
def test_what_makes_no_sense_is_refused_with_how_to_write_it(url: str) -> None:
    with pytest.raises(StartupError) as caught:
        driver_url(url)
    assert "%2F" in caught.value.remedy
    assert "can" not in str(caught.value).removeprefix("the database URL cannot")


def test_a_mode_of_tls_is_one_that_there_is() -> None:
    with pytest.raises(StartupError, match="'verify' is no sslmode") as caught:
        driver_url("postgres://h/d?sslmode=verify")
    assert "verify-full" in caught.value.remedy


def test_channel_binding_is_refused_rather_than_dropped() -> None:
    with pytest.raises(StartupError, match="channel_binding"):
        driver_url("postgres://h/d?channel_binding=require")
