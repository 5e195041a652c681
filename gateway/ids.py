"""Identifiers: opaque, time-ordered, and derivable where a replay must find the same ones again."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from uuid import UUID

RESPONSE_PREFIX = "resp_"
CONVERSATION_PREFIX = "conv_"
CONTAINER_PREFIX = "cntr_"
CONTAINER_FILE_PREFIX = "cfile_"
FILE_PREFIX = "file-"
PROJECT_PREFIX = "proj_"
SPEND_ALERT_PREFIX = "alert_"
SERVICE_ACCOUNT_PREFIX = "svc_acct_"
IDENTITY_PROVIDER_PREFIX = "widp_"
FEDERATION_RULE_PREFIX = "wifr_"
OPERATOR_ISSUER_PREFIX = "issuer_"
API_KEY_PREFIX = "key_"
TENANT_PREFIX = "org-"
USER_PREFIX = "user-"
COMPACTION_PREFIX = "cmp_"
AUDIT_LOG_PREFIX = "audit_log-"
MESSAGE_PREFIX = "msg_"
REASONING_PREFIX = "rs_"
FUNCTION_CALL_PREFIX = "fc_"
FUNCTION_CALL_OUTPUT_PREFIX = "fco_"
CUSTOM_CALL_PREFIX = "ctc_"
CUSTOM_CALL_OUTPUT_PREFIX = "ctco_"
LOCAL_SHELL_CALL_PREFIX = "lsh_"
LOCAL_SHELL_CALL_OUTPUT_PREFIX = "lsho_"
SHELL_CALL_PREFIX = "sh_"
SHELL_CALL_OUTPUT_PREFIX = "sho_"
APPLY_PATCH_CALL_PREFIX = "apc_"
APPLY_PATCH_CALL_OUTPUT_PREFIX = "apco_"
TOOL_SEARCH_CALL_PREFIX = "tsc_"
TOOL_SEARCH_OUTPUT_PREFIX = "tso_"
HOSTED_PREFIXES = {
    "web_search_call": "ws_",
    "file_search_call": "fs_",
    "code_interpreter_call": "ci_",
    "image_generation_call": "ig_",
    "computer_call": "cu_",
    "computer_call_output": "cuo_",
    "mcp_list_tools": "mcpl_",
    "mcp_approval_request": "mcpr_",
    "mcp_approval_response": "mcpa_",
    "mcp_call": "mcp_",
    "additional_tools": "at_",
    "program": "prog_",
    "program_output": "progo_",
}
CALL_PREFIX = "call_"

_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}\Z")
_CONVERSATION_ID = re.compile(r"conv_[0-9a-f]{32}\Z")
_HEX_ID = re.compile(r"[0-9a-f]{32}\Z")
_CALL_ID = re.compile(r"call_([0-9a-f]{20})([0-9a-f]{4})\Z")
_CALL_FORMS = 8
_FORMED_MESSAGE_ID = re.compile(r"msg_[0-9a-f]{36,}([g-i])\Z")
_OUTPUT_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})[0-9a-f]{4,}[g-i]?\Z")
_ITEM_ID = re.compile(r"[a-z]+_[0-9a-f]{32}i?[0-9a-f]{4,}[g-i]?\Z")
_FORM_LETTERS = ("", "g", "h", "i")


def new_uuid() -> UUID:
    """Return a UUIDv7 (RFC 9562): 48 bits of milliseconds, then 74 random bits."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & ((1 << 48) - 1)) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def new_request_id() -> str:
    # An `x-request-id`: `req_` and 32 hex digits.
    return "req_" + os.urandom(16).hex()


def new_replica_id() -> str:
    # The name under which one process claims responses.
    return "replica_" + secrets.token_hex(8)


def audit_log_id(uuid: UUID) -> str:
    return AUDIT_LOG_PREFIX + uuid.hex


def audit_log_uuid(audit_log_id: str) -> UUID | None:
    """Return the UUID behind an id that `audit_log_id` made; None for anything else."""
    digits = audit_log_id.removeprefix(AUDIT_LOG_PREFIX)
    is_one = digits != audit_log_id and _HEX_ID.match(digits) is not None
    return UUID(digits) if is_one else None


def response_id(uuid: UUID) -> str:
    return f"{RESPONSE_PREFIX}{uuid.int:032x}"


def parse_response_id(text: str) -> UUID | None:
    # None if this gateway cannot have issued the id, as for all `parse_*` here.
    return UUID(text[len(RESPONSE_PREFIX) :]) if _RESPONSE_ID.match(text) else None


def conversation_id(uuid: UUID) -> str:
    return CONVERSATION_PREFIX + uuid.hex


def parse_conversation_id(text: str) -> UUID | None:
    """Return the UUID behind the id; None if this gateway cannot have issued it."""
    is_ours = _CONVERSATION_ID.match(text)
    return UUID(text[len(CONVERSATION_PREFIX) :]) if is_ours else None


def container_id(uuid: UUID) -> str:
    return CONTAINER_PREFIX + uuid.hex


def container_file_id(uuid: UUID) -> str:
    return CONTAINER_FILE_PREFIX + uuid.hex


def file_id(uuid: UUID) -> str:
    return FILE_PREFIX + uuid.hex


def project_id(uuid: UUID) -> str:
    return PROJECT_PREFIX + uuid.hex


def spend_alert_id(uuid: UUID) -> str:
    return SPEND_ALERT_PREFIX + uuid.hex


def parse_spend_alert_id(text: str) -> UUID | None:
    return _parse(SPEND_ALERT_PREFIX, text)


def parse_project_id(text: str) -> UUID | None:
    return _parse(PROJECT_PREFIX, text)


def service_account_id(uuid: UUID) -> str:
    return SERVICE_ACCOUNT_PREFIX + uuid.hex


def parse_service_account_id(text: str) -> UUID | None:
    return _parse(SERVICE_ACCOUNT_PREFIX, text)


def identity_provider_id(uuid: UUID) -> str:
    return IDENTITY_PROVIDER_PREFIX + uuid.hex


def parse_identity_provider_id(text: str) -> UUID | None:
    return _parse(IDENTITY_PROVIDER_PREFIX, text)


def federation_rule_id(uuid: UUID) -> str:
    return FEDERATION_RULE_PREFIX + uuid.hex


def parse_federation_rule_id(text: str) -> UUID | None:
    return _parse(FEDERATION_RULE_PREFIX, text)


def operator_issuer_id(uuid: UUID) -> str:
    return OPERATOR_ISSUER_PREFIX + uuid.hex


def parse_operator_issuer_id(text: str) -> UUID | None:
    return _parse(OPERATOR_ISSUER_PREFIX, text)


def api_key_id(uuid: UUID) -> str:
    return API_KEY_PREFIX + uuid.hex


def parse_api_key_id(text: str) -> UUID | None:
    return _parse(API_KEY_PREFIX, text)


def tenant_id(uuid: UUID) -> str:
    return TENANT_PREFIX + uuid.hex


def parse_tenant_id(text: str) -> UUID | None:
    return _parse(TENANT_PREFIX, text)


def user_id(uuid: UUID) -> str:
    return USER_PREFIX + uuid.hex


def parse_user_id(text: str) -> UUID | None:
    return _parse(USER_PREFIX, text)


def parse_container_id(text: str) -> UUID | None:
    return _parse(CONTAINER_PREFIX, text)


def parse_container_file_id(text: str) -> UUID | None:
    return _parse(CONTAINER_FILE_PREFIX, text)


def parse_file_id(text: str) -> UUID | None:
    return _parse(FILE_PREFIX, text)


def _parse(prefix: str, text: str) -> UUID | None:
    digits = text[len(prefix) :]
    return UUID(digits) if text.startswith(prefix) and _HEX_ID.match(digits) else None


def auto_container(response: UUID) -> UUID:
    """Return the container of a response that asked for `auto`.

    Every replica that continues the response computes the same one.
    """
    digest = hashlib.sha256(b"container of " + response.bytes).digest()
    return UUID(bytes=digest[:16])


def output_item_id(prefix: str, response: UUID, ordinal: int, form: int = 0) -> str:
    """Return the id of the `ordinal`-th output item, from 0.

    The id of a message also encodes the form of its header (`harmony.message_headers`), from 1
    on, in a letter that is not a hex digit.
    """
    return f"{prefix}{response.int:032x}{ordinal:04x}{_FORM_LETTERS[form]}"


def source_of_output(item_id: str) -> str:
    """Return the part that the ids of all output items of one response share, and no others have.

    Empty for an id that is not of an output item.
    """
    found = _OUTPUT_ITEM_ID.match(item_id)
    return found.group(1) if found else ""


def is_item_id(item_id: str) -> bool:
    """Return True if the id has the form of this gateway's item ids.

    No two items share one; nor do they share OpenAI's, of which the longer ones have this form,
    too.
    """
    return _ITEM_ID.match(item_id) is not None


def message_form(item_id: str) -> int:
    """Return the form that a message id encodes; 0 for an id that this gateway did not make."""
    found = _FORMED_MESSAGE_ID.match(item_id)
    return _FORM_LETTERS.index(found.group(1)) if found else 0


def input_item_id(prefix: str, response: UUID, ordinal: int) -> str:
    return f"{prefix}{response.int:032x}i{ordinal:04x}"


def call_id(response: UUID, ordinal: int, form: int = 0) -> str:
    """Return the `call_id` of a tool call: `call_` and 24 hex digits.

    The digits reveal nothing of the response. Every client sends the id back, so it encodes the
    form of the call's header, 0 to 7 (`harmony.message_headers`): 20 digits are pseudo-random, the
    last four a check of these, exclusive-or the form.
    """
    digest = hashlib.sha256(response.bytes + ordinal.to_bytes(4, "big")).hexdigest()
    stem = digest[:20]
    return f"{CALL_PREFIX}{stem}{_check(stem) ^ form:04x}"


def call_form(call_id: str) -> int:
    """Return the header form encoded in a `call_id`; 0 for one that this gateway did not make.

    One in 8192 foreign ids of 24 hex digits looks like this gateway's and yields some form.
    """
    return max(_find_call_form(call_id), 0)


def is_call_id(call_id: str) -> bool:
    """Return True if this gateway made the id, which then belongs to one call: see `call_form`."""
    return _find_call_form(call_id) >= 0


def _find_call_form(call_id: str) -> int:
    # -1 for an id that this gateway did not make.
    found = _CALL_ID.match(call_id)
    if found is None:
        return -1
    form = int(found.group(2), 16) ^ _check(found.group(1))
    return form if form < _CALL_FORMS else -1


def _check(stem: str) -> int:
    return int.from_bytes(hashlib.sha256(stem.encode()).digest()[:2], "big")
