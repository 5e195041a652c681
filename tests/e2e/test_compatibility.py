"""docs/compatibility.md says what the tests show, and the clients are pinned."""

from __future__ import annotations

import json

import pytest

from tests.e2e.compatibility import CLIENTS, FEATURES, PACKAGES, PAGE, page, proofs, versions


@pytest.mark.slow
def test_the_page_is_what_the_marks_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "run python -m tests.e2e.compatibility"


def test_every_client_and_every_feature_has_a_test() -> None:
    shown = proofs()
    assert {proof.client for proof in shown} == set(PACKAGES)
    assert {proof.feature for proof in shown} == set(FEATURES)


def test_every_client_is_pinned() -> None:
    assert set(PACKAGES.values()) <= versions().keys()


def test_lock_files_of_clients_hold_hashes_and_no_address_of_a_registry() -> None:
    for path in CLIENTS.glob("*/requirements.txt"):
        text = path.read_text("utf-8")
        assert "://" not in text, path
        assert text.count("==") <= text.count("--hash=sha256:"), path
    for path in CLIENTS.glob("*/package-lock.json"):
        packages = json.loads(path.read_text("utf-8"))["packages"]
        del packages[""]
        assert packages, path
        for package in packages.values():
            assert "resolved" not in package, path
            assert "integrity" in package, path
