"""Signing in at a provider in a browser, and what each role is offered and refused there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from gateway.app import create_admin_app
from gateway.tenancy.permissions import OPERATOR_ROLES
from tests.console.chromium import NEEDS_CHROMIUM, visit
from tests.console.conftest import Site
from tests.console.test_sign_in import LOOPBACK
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.processes import reserved_port
from tests.fakes.serving import serving

