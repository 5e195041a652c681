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
    fetch_timeout_s: PositiveFloat = Field(
        5.0, description="Seconds to fetch the keys of one issuer, its configuration included."
    )
    keys_bytes_max: PositiveInt = Field(
        256 * 1024, description="Bytes of the keys of one issuer, or of its configuration."
    )
    keys_fresh_s: PositiveFloat = Field(
        3600.0,
        description="Seconds that keys are used as they came; in the second half of that they are "
        "fetched again, and no request waits.",
    )
    keys_stale_s: NonNegativeFloat = Field(
        86_400.0, description="Seconds more that they are used while their issuer does not answer."
    )
    unknown_key_interval_s: PositiveFloat = Field(
        60.0, description="Seconds between two fetches because a token names a key that is unknown."
    )
    retry_s: PositiveFloat = Field(
        5.0, description="Seconds after which an issuer that did not answer is asked again."
    )
    issuers_max: PositiveInt = Field(1_000, description="Issuers whose keys are remembered.")
    token_bytes_max: PositiveInt = Field(16_384, description="Bytes of a token of an issuer.")
    exchanged_token_s: PositiveInt = Field(
        3_600,
        le=86_400,
        description="Seconds that a token of POST /oauth/token lives, unless the one that it is "
        "given for ends before.",
    )
    providers_max: PositiveInt = Field(50, description="Identity providers of one tenant.")
    rules_max: PositiveInt = Field(50, description="Federation rules of one identity provider.")
