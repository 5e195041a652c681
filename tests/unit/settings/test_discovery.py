"""The settings of sources of backends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.cli.configuration import require_complete
from gateway.errors import ConfigError
from gateway.settings import load_settings
from gateway.settings.discovery import Discovery


def loaded(*sources: dict[str, Any]) -> Any:
    return load_settings(environ={"GATEWAY_DISCOVERY": json.dumps(sources)})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"kind": "file"}, "file needs path"),
        ({"kind": "dns"}, "dns needs host"),
        ({"kind": "srv"}, "srv needs host"),
        ({"kind": "kubernetes"}, "kubernetes needs service"),
        ({"kind": "consul"}, "expected 'file', 'dns', 'srv' or 'kubernetes'"),
        ({"kind": "dns", "host": "h", "servers": ["10.0.0.1"]}, "such as 10.96.0.10:53"),
        ({"kind": "dns", "host": "h", "servers": ["a:99999"]}, "such as 10.96.0.10:53"),
        ({"kind": "kubernetes", "service": "v", "api_url": "ftp://x"}, "expected a URL"),
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


def test_the_api_server_is_the_one_that_pods_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Discovery(name="k", kind="kubernetes", service="v")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert source.api_server == "https://10.96.0.1:6443"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert source.api_server == "https://[fd00::1]:6443"
