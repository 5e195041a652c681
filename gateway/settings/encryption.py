"""The settings of encryption at rest: whether content is sealed, and who wraps the keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from gateway.settings.sections import Secret, Section, http_url, postgres_url

if TYPE_CHECKING:
    from collections.abc import Mapping


class FileKeysSection(Section):
    """Keys in a file: a line has an id and 32 bytes in base64; the first one wraps."""

    path: Path | None = Field(
        None,
        description="The file, which nobody else may read (chmod 600). "
        "`harmony-gateway encryption new-key` makes a line of it.",
    )


class VaultSection(Section):
    """HashiCorp Vault or OpenBao: a derived key of the transit engine."""

    url: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="Such as https://vault:8200."
    )
    token: Secret | None = Field(None, description="May encrypt and decrypt with that key.")
    key: str = Field("harmony-gateway", description="Its name; made with derived=true.")
    mount: str = Field("transit", description="Where the engine is mounted.")
    namespace: str = Field("", description="Of Vault Enterprise.")


class KmsSection(Section):
    """AWS KMS: a symmetric key."""

    region: str | None = Field(None, description="Such as eu-central-1.")
    key_id: str | None = Field(None, description="Id, ARN or alias/NAME of the key.")
    access_key_id: str | None = Field(None, description="May kms:Encrypt and kms:Decrypt with it.")
    secret_access_key: Secret | None = Field(None, description="Of the access key.")
    session_token: Secret | None = Field(None, description="Of a temporary access key.")
    url: str = Field("", description="Where KMS is, if not at its region's public address.")


class Encryption(Section):
    """Encryption of tenants' content at rest, with a key for each tenant."""

    provider: Literal["none", "file", "vault-transit", "aws-kms"] = Field(
        "none",
        description="Who wraps new keys of tenants; none: nothing is sealed. Others that are "
        "configured below go on to unwrap what they wrapped.",
    )
    tenants: Literal["all", "listed"] = Field(
        "all",
        description="all: every tenant gets a key when it is first met; listed: those that "
        "`harmony-gateway encryption enable` was called for.",
    )
    keys_url: Annotated[SecretStr, AfterValidator(postgres_url)] | None = Field(
        None,
        description="The database of wrapped keys, which must not be that of the content: a "
        "destroyed key makes content unreadable in all backups that do not have the key.",
    )
    fresh_s: float = Field(
        300.0,
        ge=1,
        le=86_400,
        description="Seconds until an unwrapped key is asked for again: so long one that was "
        "destroyed or withdrawn goes on to work.",
    )
    stale_s: float = Field(
        900.0,
        ge=1,
        le=86_400,
        description="Seconds that known tenants go on while whoever wraps keys is away.",
    )
    reseal_rows_per_s: float = Field(
        500.0,
        ge=0,
        le=1_000_000,
        description="Rows a second at most that are brought under the newest key of their tenant, "
        "in the background after it was renewed; 0: `harmony-gateway encryption reseal` does it.",
    )
    file: FileKeysSection = FileKeysSection()
    vault: VaultSection = VaultSection()
    kms: KmsSection = KmsSection()

    @property
    def is_on(self) -> bool:
        # Something is sealed, or may have been.
        return self.provider != "none"

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not self.is_on:
            return self
        if self.keys_url is None:
            raise ValueError("keys_url is missing: wrapped keys have a database of their own")
        kms = self.kms
        needed: Mapping[str, tuple[object, ...]] = {
            "file": (self.file.path,),
            "vault-transit": (self.vault.url, self.vault.token),
            "aws-kms": (kms.region, kms.key_id, kms.access_key_id, kms.secret_access_key),
        }
        if None in needed[self.provider]:
            raise ValueError(f"the provider {self.provider} is not configured")
        return self
