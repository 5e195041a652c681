"""The settings of the admin API of tenants, and of the plane of operators."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from gateway.settings.sections import Section


class Admin(Section):
    """OpenAI's admin API (/v1/organization) and the operator's own (/admin/v1)."""

    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of a listener of their own; 0 picks a free one. Default: none, and then "
        "there is no plane of operators.",
    )
    host: str = Field(
        "127.0.0.1", description="Address of that listener. It should not be a public one."
    )
    public: bool = Field(
        default=False,
        description="Whether server.port serves the admin API of tenants, too, as OpenAI's base "
        "URL does. The plane of operators is never served there.",
    )
    projects_max: PositiveInt = Field(
        1_000, description="Projects of one tenant, archived ones included."
    )
    service_accounts_max: PositiveInt = Field(1_000, description="Service accounts of one project.")
    keys_max: PositiveInt = Field(10_000, description="API keys of one tenant that work.")
    key_lifetime_max_s: PositiveInt | None = Field(
        None,
        description="Seconds after which a key ends that the admin API makes; a request may ask "
        "for less. Default: it ends when it is deleted.",
    )
    key_overlap_s: int = Field(
        86_400,
        ge=0,
        description="Seconds that a key which is rotated goes on beside the new one.",
    )
