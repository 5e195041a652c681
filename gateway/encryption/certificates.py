from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509

if TYPE_CHECKING:
    from datetime import datetime


def expiry(der: bytes) -> datetime:
    return x509.load_der_x509_certificate(der).not_valid_after_utc
