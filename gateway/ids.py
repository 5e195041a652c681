"""Identifiers: opaque, time-ordered, and derivable where a replay must find the same ones again."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from uuid import UUID

RESPONSE_PREFIX = "resp_"
COMPACTION_PREFIX = "cmp_"
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


def first_uuid(second: float) -> UUID:
    """Return a UUID that is not greater than any UUIDv7 made at this Unix second or later."""
    return UUID(int=max(0, int(second * 1000)) << 80)


def new_request_id() -> str:
    return "req_" + os.urandom(16).hex()


def new_replica_id() -> str:
    return "replica_" + secrets.token_hex(8)


class IdForm:
    __slots__ = ("_prefix",)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __call__(self, uuid: UUID) -> str:
        return f"{self._prefix}{uuid.int:032x}"

    def parse(self, text: str) -> UUID | None:
        """Return the UUID; None for a foreign id."""
        begin = len(self._prefix)
        is_one = text.startswith(self._prefix) and _HEX_ID.match(text, begin) is not None
        return UUID(text[begin:]) if is_one else None


response_id = IdForm(RESPONSE_PREFIX)
conversation_id = IdForm("conv_")
container_id = IdForm("cntr_")
container_file_id = IdForm("cfile_")
file_id = IdForm("file-")
project_id = IdForm("proj_")
spend_alert_id = IdForm("alert_")
service_account_id = IdForm("svc_acct_")
identity_provider_id = IdForm("widp_")
federation_rule_id = IdForm("wifr_")
operator_issuer_id = IdForm("issuer_")
api_key_id = IdForm("key_")
tenant_id = IdForm("org-")
user_id = IdForm("user-")
audit_log_id = IdForm("audit_log-")

parse_response_id = response_id.parse
parse_conversation_id = conversation_id.parse
parse_container_id = container_id.parse
parse_container_file_id = container_file_id.parse
parse_file_id = file_id.parse
parse_project_id = project_id.parse
parse_spend_alert_id = spend_alert_id.parse
parse_service_account_id = service_account_id.parse
parse_identity_provider_id = identity_provider_id.parse
parse_federation_rule_id = federation_rule_id.parse
parse_operator_issuer_id = operator_issuer_id.parse
parse_api_key_id = api_key_id.parse
parse_tenant_id = tenant_id.parse
parse_user_id = user_id.parse
parse_audit_log_id = audit_log_id.parse


def auto_container(response: UUID) -> UUID:
    """Return the container of a response that requests `auto`, the same at every replica."""
    digest = hashlib.sha256(b"container of " + response.bytes).digest()
    return UUID(bytes=digest[:16])


def output_item_id(prefix: str, response: UUID, ordinal: int, form: int = 0) -> str:
    """Return the id of the `ordinal`-th output item, from 0; a message's ends with the form of its
    header (`harmony.message_headers`) as a letter that is no hex digit.
    """
    return f"{prefix}{response.int:032x}{ordinal:04x}{_FORM_LETTERS[form]}"


def source_of_output(item_id: str) -> str:
    """Return the part that one response's output items alone share."""
    match = _OUTPUT_ITEM_ID.match(item_id)
    return match.group(1) if match else ""


def is_item_id(item_id: str) -> bool:
    """Return True for the form of this gateway's item ids, which OpenAI's longer ones have, too."""
    return _ITEM_ID.match(item_id) is not None


def message_form(item_id: str) -> int:
    match = _FORMED_MESSAGE_ID.match(item_id)
    return _FORM_LETTERS.index(match.group(1)) if match else 0


def input_item_id(prefix: str, response: UUID, ordinal: int) -> str:
    return f"{prefix}{response.int:032x}i{ordinal:04x}"


def call_id(response: UUID, ordinal: int, form: int = 0) -> str:
    """Return the `call_id` of a tool call, which reveals nothing of the response.

    Every client sends it back, so it has the form of the call's header (`harmony.message_headers`):
    20 digits are pseudo-random, the last four a check of these, exclusive-or the form.
    """
    digest = hashlib.sha256(response.bytes + ordinal.to_bytes(4, "big")).hexdigest()
    stem = digest[:20]
    return f"{CALL_PREFIX}{stem}{_check(stem) ^ form:04x}"


def call_form(call_id: str) -> int:
    """Return the header form in a `call_id`; 0 for a foreign one.

    One in 8192 foreign ids of 24 hex digits looks like this gateway's and yields some form.
    """
    return max(_find_call_form(call_id), 0)


def is_call_id(call_id: str) -> bool:
    return _find_call_form(call_id) >= 0


def _find_call_form(call_id: str) -> int:
    match = _CALL_ID.match(call_id)
    if match is None:
        return -1
    form = int(match.group(2), 16) ^ _check(match.group(1))
    return form if form < _CALL_FORMS else -1


def _check(stem: str) -> int:
    return int.from_bytes(hashlib.sha256(stem.encode()).digest()[:2], "big")
