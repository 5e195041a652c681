"""Tests of bytes as they are stored where nothing is sealed: not for a suite that seals all."""

from __future__ import annotations

import os

import pytest


def plain_only(why: str) -> pytest.MarkDecorator:
    """Skip where TEST_SEALED is set (`tests.conftest.keyring_for_tests`), and say `why`."""
    return pytest.mark.skipif(bool(os.environ.get("TEST_SEALED")), reason=f"sealed: {why}")
