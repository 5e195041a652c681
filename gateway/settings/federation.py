"""Issuers of tokens that tenants trust: how their keys are fetched, and what tokens may be."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from gateway.settings.sections import Section
from gateway.settings.web import known_host, network


class Federation(Section):
    """Tokens of issuers (OIDC) as bearer, and workload identity. See docs/authentication.md."""

    public: bool = Field(
        default=True,
        description="Whether keys of issuers may be fetched from the public internet.",
    )
    allowed_networks: tuple[Annotated[str, AfterValidator(network)], ...] = Field(
        (), description="Networks of one's own that they may be fetched in, such as 10.20.0.0/16."
    )
    allowed_hosts: tuple[Annotated[str, AfterValidator(known_host)], ...] = Field(
        (), description="Hosts of one's own that they may be fetched at, such as sso.internal:443."
    )
    plain_http: bool = Field(
        default=False,
        description="Whether they may be fetched without TLS: whoever is between could forge them.",
    )
    keys_fresh_s: PositiveFloat = Field(
        3600.0,
        description="Seconds that keys are used as they came; in the second half of that they are "
        "fetched again, and no request waits.",
    )
    keys_stale_s: NonNegativeFloat = Field(
        86_400.0, description="Seconds more that they are used while their issuer does not answer."
    )
    exchanged_token_s: PositiveInt = Field(
        3_600,
        le=86_400,
        description="Seconds that a token of POST /oauth/token lives, unless the one that it is "
        "given for ends before.",
    )
