"""The settings of sources of backends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.cli.config import require_complete
from gateway.errors import ConfigError
from gateway.settings import load_settings


def loaded(*sources: dict[str, Any]) -> Any:
    return load_settings(environ={"GATEWAY_DISCOVERY": json.dumps(sources)})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"kind": "file"}, "file needs path"),
        ({"kind": "dns"}, "dns needs host"),
        ({"kind": "srv"}, "srv needs host"),
        ({"kind": "consul"}, "expected 'file', 'dns' or 'srv'"),
        ({"kind": "dns", "host": "h", "servers": ["10.0.0.1"]}, "such as 10.96.0.10:53"),
        ({"kind": "dns", "host": "h", "servers": ["a:99999"]}, "such as 10.96.0.10:53"),
    ],
)
def test_what_is_missing_or_wrong_is_said(source: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded({"name": "one", **source})
    assert said in str(raised.value)


@pytest.mark.parametrize("name", ["one", "settings"])
def test_names_differ_also_from_that_of_the_settings(name: str) -> None:
    with pytest.raises(ConfigError, match="names of sources in discovery must differ"):
        loaded(
            {"name": "one", "kind": "file", "path": "a"},
            {"name": name, "kind": "file", "path": "b"},
        )


def test_a_source_alone_is_enough_to_serve() -> None:
    require_complete(loaded({"name": "one", "kind": "file", "path": "a"}))
