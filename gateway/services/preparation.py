"""A valid request → all that a run needs: history, prompt, bounds. Nothing is generated here."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gateway import ids
from gateway.conversation.assembly import assemble, referenced_ids
from gateway.conversation.truncation import drop_oldest_turns
from gateway.errors import ContextLengthExceeded, InvalidRequest, PreviousResponseNotFound
from gateway.generation import PREAMBLE, Sampling
from gateway.protocol.echo import echo
from gateway.protocol.responses import ResponseHead
from gateway.runs.specification import RunSpecification
from gateway.store import messages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor
    from uuid import UUID

    from gateway.conversation.assembly import Context
    from gateway.generation import Prompt
    from gateway.harmony.rendering import Renderer, RenderOptions
    from gateway.protocol.context import ContextItem
    from gateway.protocol.requests import CreateResponse
    from gateway.services.models import Model, Models
    from gateway.store.engine import Database
    from gateway.tenancy import Principal, TenantId


@dataclass(frozen=True, slots=True)
class PreparationLimits:
    """Bounds on what a request may bring with it."""

    history_depth_max: int
    history_items_max: int
    inline_tokenize_chars_max: int


@dataclass(frozen=True, slots=True)
class Parent:
    """What a response continues: nothing, or a stored response and all before it."""

    uuid: UUID | None
    items: tuple[ContextItem, ...]
    root_created_at: int
