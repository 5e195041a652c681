"""What the API promises, where that is written, and by which id tests refer to it.

The sections are those of the reference of the Responses API: `6.3` has the cases of the Open
Responses compliance suite, `7` those of the compatibility test for providers of gpt-oss. Left out
is only what promises nothing: prices, retries of others, advice.
"""

from __future__ import annotations

from typing import Final

from tests.conformance.requirements.compatibility import COMPATIBILITY
from tests.conformance.requirements.context import CHOICES, CONTEXT
from tests.conformance.requirements.create import CREATE
from tests.conformance.requirements.errors import ERRORS
from tests.conformance.requirements.items import ITEMS
from tests.conformance.requirements.open_responses import OPEN_RESPONSES
from tests.conformance.requirements.response_object import RESPONSE_OBJECT
from tests.conformance.requirements.routes import ROUTES
from tests.conformance.requirements.services import SERVICES
from tests.conformance.requirements.streaming import STREAMING
from tests.conformance.requirements.websocket import WEBSOCKET

REQUIREMENTS: Final = (
    *CREATE,
    *CONTEXT,
    *CHOICES,
    *ROUTES,
    *SERVICES,
    *WEBSOCKET,
    *RESPONSE_OBJECT,
    *ITEMS,
    *STREAMING,
    *ERRORS,
    *OPEN_RESPONSES,
    *COMPATIBILITY,
)
