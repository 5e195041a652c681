from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from gateway.settings.http_urls import HttpUrl, WholeUrl
from gateway.settings.sections import Secret, Section
from gateway.tenancy.permissions import OperatorRole


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _private(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ValueError("sessions need https outside of this machine")
    if parts.path:
        raise ValueError("expected an origin, without a path")
    return url


Text = Annotated[str, Field(min_length=1, max_length=256)]
PrivateUrl = Annotated[HttpUrl, AfterValidator(_private)]


class SignIn(Section):
    """Sign-in at an OpenID provider, to which `federation` has to allow connections."""

    issuer: WholeUrl | None = Field(
        None, description="The provider. Set it so that operators sign in with their own accounts."
    )
    client_id: Text | None = Field(
        None,
        description="This console's name at the provider. Set that which it was registered as.",
    )
    client_secret: Secret | None = Field(
        None, description="Its secret. Set it unless the provider has it as a public client."
    )
    role_claim: Text = Field(
        "groups", description="Claim that roles depend on. Set that which your provider fills."
    )
    roles: dict[str, OperatorRole] = Field(
        default_factory=dict,
        description="Roles by values of the claim. Set those of your groups; nobody else may in.",
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.issuer is not None and (self.client_id is None or not self.roles):
            raise ValueError("a sign-in needs issuer, client_id and roles")
        return self


class Console(Section):
    """Pages for operators, at /console of the admin listener."""

    enabled: bool = Field(
        default=False,
        description="Serve them; needs admin.port and the extra `console`. Set it where operators "
        "work with a browser.",
    )
    public_url: PrivateUrl | None = Field(
        None,
        description="Origin that browsers see; default: loopback alone. Set it behind a proxy, and "
        "where operators are elsewhere.",
    )
    name: Text | None = Field(
        None,
        description="This installation's name on every page. It gives the page's line its colour, "
        "which is red with 'prod' in it. Set it where you operate several.",
    )
    sign_in: SignIn = SignIn()
