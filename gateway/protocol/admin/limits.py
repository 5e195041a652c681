"""Rate limits, spend limits and spend alerts of the admin API: bodies and objects.

Field for field those of openai-python 3.54 (`openai.types.admin.organization`), with what it has no
field for under `harmony`. Amounts are in cents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints

from gateway import ids
from gateway.limits.money import CENT
from gateway.limits.terms import DAY_S, MINUTE_S
from gateway.protocol.base import AS_INTEGER, Count, Many, NullableModel, WireModel
from gateway.protocol.request_errors import unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from gateway.limits.terms import Limit, Mode, What

Json = dict[str, Any]

UNLIMITED: Final = 1_000_000_000
"""Where there is no limit: OpenAI's object has a number there, always. So much or more that is set
in one of its fields means that there is none.
"""
CENTS_MAX: Final = 10**11
RECIPIENTS_MAX: Final = 20
RATE_LIMIT_PREFIX: Final = "rl-"


def _printable(text: str) -> str:
    # The name becomes part of a mail's subject, which is one line.
    if not text.isprintable():
        raise ValueError("must have printable characters alone")
    return text


ADDRESS: Final = (
    r"^[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=^_`{|}~-]+)*"
    r"@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$"
)
"""One mailbox in ASCII: RFC 5322's dot-atom without the question mark, which begins an encoded word
of RFC 2047, and a host name."""
Address = Annotated[str, StringConstraints(max_length=254, pattern=ADDRESS)]
Subject = Annotated[str, StringConstraints(max_length=200), AfterValidator(_printable)]
Cents = Annotated[int, Field(ge=0, le=CENTS_MAX), AS_INTEGER]

_FIELDS: Final[dict[str, tuple[What, int]]] = {
    "max_requests_per_1_minute": ("requests", MINUTE_S),
    "max_tokens_per_1_minute": ("tokens", MINUTE_S),
    "max_requests_per_1_day": ("requests", DAY_S),
}
_EXTRA_FIELDS: Final[dict[str, tuple[What, int]]] = {
    "max_tokens_per_1_day": ("tokens", DAY_S),
    "max_input_tokens_per_1_minute": ("input_tokens", MINUTE_S),
    "max_output_tokens_per_1_minute": ("output_tokens", MINUTE_S),
    "max_concurrent_responses": ("responses", 0),
    "max_stored_bytes": ("stored_bytes", 0),
    "max_running_background": ("background_running", 0),
    "max_queued_background": ("background_queued", 0),
}
_NEEDED: Final = frozenset({"max_requests_per_1_minute", "max_tokens_per_1_minute"})


class RateLimitExtras(WireModel):
    """`harmony` of a rate limit; null takes a limit away, and leaves the mode as it is."""

    max_tokens_per_1_day: Count | None = None
    max_input_tokens_per_1_minute: Count | None = None
    max_output_tokens_per_1_minute: Count | None = None
    max_concurrent_responses: Count | None = None
    max_stored_bytes: Count | None = None
    max_running_background: Count | None = None
    max_queued_background: Count | None = None
    mode: Literal["enforce", "observe"] | None = None


class KeyLimits(RateLimitExtras):
    """`harmony.limits` of a key that is made: for all models together, by the names that limits of
    a project have.
    """

    max_requests_per_1_minute: Count | None = None
    max_tokens_per_1_minute: Count | None = None
    max_requests_per_1_day: Count | None = None

    @property
    def values(self) -> dict[tuple[What, int], int | None]:
        # Nulls are left out.
        given = _given(self, _FIELDS) | _given(self, _EXTRA_FIELDS)
        return {what: value for what, value in given.items() if value is not None}


class RateLimitUpdate(WireModel):
    """`POST …/rate_limits/{id}`: what is left out stays, null takes a limit away; so does a number
    of 1,000,000,000 or more where it stands outside of `harmony`. The mode alone is that of all
    limits of the model.
    """

    max_requests_per_1_minute: Count | None = None
    max_tokens_per_1_minute: Count | None = None
    max_requests_per_1_day: Count | None = None
    batch_1_day_max_input_tokens: Count | None = None
    max_audio_megabytes_per_1_minute: Count | None = None
    max_images_per_1_minute: Count | None = None
    harmony: RateLimitExtras | None = None

    @property
    def mode(self) -> Mode | None:
        # None leaves the mode unchanged.
        return None if self.harmony is None else self.harmony.mode

    @property
    def values(self) -> dict[tuple[What, int], int | None]:
        """Return the new values by limit; None removes a limit.

        Raises `InvalidRequest` for limits that are not supported.
        """
        for name in self.model_fields_set - _FIELDS.keys() - {"harmony"}:
            if getattr(self, name) is not None:
                raise unsupported(name, "Leave it out: this server limits requests and tokens")
        more = {} if self.harmony is None else _given(self.harmony, _EXTRA_FIELDS)
        return _given(self, _FIELDS) | more


def _given(
    model: WireModel, fields: Mapping[str, tuple[What, int]]
) -> dict[tuple[What, int], int | None]:
    # OpenAI's value for "no limit" becomes None.
    found = {name: getattr(model, name) for name in fields if name in model.model_fields_set}
    return {
        fields[name]: None if name in _FIELDS and (value or 0) >= UNLIMITED else value
        for name, value in found.items()
    }


class SpendLimitUpdate(WireModel):
    """`POST …/spend_limit`: the hard limit of a month, in cents."""

    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: Cents


class NotificationChannel(NullableModel):
    """Channel and recipients of a notification: OpenAI has e-mail alone."""

    type: Literal["email"]
    recipients: Annotated[Many[Address], Field(min_length=1, max_length=RECIPIENTS_MAX)]
    subject_prefix: Subject | None = None


class SpendAlertUpdate(WireModel):
    """`POST …/spend_alerts` and `…/spend_alerts/{id}`."""

    currency: Literal["USD"]
    interval: Literal["month"]
    notification_channel: NotificationChannel
    threshold_amount: Cents

    @property
    def channel(self) -> Json:
        """Return the channel as it is stored and shown."""
        given = self.notification_channel
        return {
            "type": given.type,
            "recipients": list(given.recipients),
            "subject_prefix": given.subject_prefix,
        }


def rate_limit_body(model: str, limits: Iterable[Limit]) -> Json:
    """Return `project.rate_limit` from the limits of a project for a model."""
    values = {(one.what, one.window_s): one.value for one in limits}
    modes = {one.mode for one in limits}
    body: Json = {
        "id": f"{RATE_LIMIT_PREFIX}{model}", "object": "project.rate_limit", "model": model
    }  # fmt: skip
    for name, what in _FIELDS.items():
        if (value := values.get(what)) is not None or name in _NEEDED:
            body[name] = UNLIMITED if value is None else value
    extras = {name: values[what] for name, what in _EXTRA_FIELDS.items() if what in values}
    mode = "observe" if modes == {"observe"} else "enforce"
    return {**body, "harmony": {**extras, "mode": mode}}


def spend_limit_body(owner: str, cap: int, spent: int) -> Json:
    # Amounts are nano-dollars.
    return {
        "object": f"{owner}.spend_limit",
        "currency": "USD",
        "interval": "month",
        "threshold_amount": cap // CENT,
        "enforcement": {"status": "enforcing" if spent >= cap else "inactive"},
    }


def spend_alert_body(owner: str, alert_id: UUID, threshold: int, channel: Json) -> Json:
    # The threshold is in nano-dollars.
    return {
        "id": ids.spend_alert_id(alert_id),
        "object": f"{owner}.spend_alert",
        "currency": "USD",
        "interval": "month",
        "threshold_amount": threshold // CENT,
        "notification_channel": channel,
    }
