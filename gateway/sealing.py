"""Reasoning that only this gateway can read again: what `reasoning.encrypted_content` holds.

A seal is bound to a tenant and a model. It is deterministic, so that a log that is folded again
gives the same bytes: the nonce is derived from key, binding and content (as in AES-SIV), so that
one nonce never serves two contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID


@dataclass(frozen=True, slots=True)
class Binding:
    """Who may open a seal, for which model, and the id of the key that it is made with."""

    tenant: UUID
    model: str
    key_id: str
