"""A mail about a spend alert, whatever its channel says."""

from __future__ import annotations

from datetime import UTC, datetime
from email.generator import BytesGenerator
from email.utils import getaddresses
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway import ids
from gateway.admin.spend_limits import ADDRESS, SpendAlertUpdate
from gateway.replication.alert_delivery import described, written
from gateway.store.limits.alerts import Firing, SpendAlert
from tests.fakes.cases import each

if TYPE_CHECKING:
    from gateway.limits.rules import Scope

ID = UUID(int=1)
AT = datetime(2026, 1, 1, tzinfo=UTC)


def asked(recipients: list[str], prefix: str | None) -> SpendAlertUpdate:
    channel: dict[str, Any] = {"type": "email", "recipients": recipients}
    if prefix is not None:
        channel["subject_prefix"] = prefix
    return SpendAlertUpdate.model_validate(
        {
            "currency": "USD",
            "interval": "month",
            "threshold_amount": 0,
            "notification_channel": channel,
        }
    )


@pytest.mark.parametrize(
    ("scope", "whose", "said"),
    [
        ("tenant", "acme", ("organization", None, None)),
        ("organization", "acme", ("organization", None, None)),
        ("project", f"project {ids.project_id(ID)} of acme", ("project", ids.project_id(ID), None)),
        ("key", f"key {ids.api_key_id(ID)} of acme", ("key", None, ids.api_key_id(ID))),
    ],
)
def test_whose_spend_it_is_stands_in_what_is_told(
    scope: Scope, whose: str, said: tuple[str, str | None, str | None]
) -> None:
    alert = SpendAlert(ID, scope, ID, "usd", "month", 0, {"type": "operator", "percent": 50})
    firing = Firing(ID, "acme", alert, AT, AT, 1)
    mail = written(firing, ["a@b.c"])
    assert mail["Subject"] == f"{whose}: 0.00 USD spent this month"
    assert mail.get_content().startswith(f"The spend of {whose} has")
    told = described(firing)["data"]
    assert (told["scope"], told["project_id"], told["api_key_id"]) == said


@pytest.mark.slow
@given(
    st.lists(st.from_regex(ADDRESS, fullmatch=True), min_size=1, max_size=3) | st.just(["a@b.c"]),
    st.none() | st.text(max_size=20),
)
def test_what_is_accepted_can_be_sent_to_as_many_as_it_names(
    recipients: list[str], prefix: str | None
) -> None:
    try:
        channel = asked(recipients, prefix).channel
    except ValidationError:
        assert prefix is not None or max(map(len, recipients)) > 254
        return
    alert = SpendAlert(ID, "organization", ID, "usd", "month", 0, channel)
    mail = written(Firing(ID, "acme", alert, AT, AT, 1), recipients)
    BytesGenerator(BytesIO()).flatten(mail, linesep="\r\n")
    assert [one for _, one in getaddresses(mail.get_all("To", []))] == recipients


@each(
    "recipient",
    [
        *("a\x1cb@x.y", "a\x00@x", "é@x.y", "<@x.y", "a@b,", '"@x', "a@[", "(@b", "a@b;c", "a@b\n"),
        *("=?utf-8?q?=0a?=@x", "a@b.c,victim", "a@b@c", "a b@c", "@", "a@", ".a@b", "a..b@c"),
    ],
)
def test_a_recipient_is_one_mailbox(recipient: str) -> None:
    with pytest.raises(ValidationError):
        asked([recipient], None)


@pytest.mark.parametrize("prefix", ["a\nb", "a\u2028b", "a\x85b", "a\x0bb", "a\x1cb"])
def test_a_subject_is_one_line(prefix: str) -> None:
    with pytest.raises(ValidationError):
        asked(["a@b.c"], prefix)
