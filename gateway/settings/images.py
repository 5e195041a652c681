"""Images that are shown to models that see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import (
    AfterValidator,
    Field,
    PositiveInt,
    model_validator,
)

from gateway.settings.sections import MIB, Section
from gateway.settings.web import known_host, network, printable

if TYPE_CHECKING:
    from typing import Self


class Images(Section):
    """Images in requests, for models whose modalities have image."""

    bytes_max: PositiveInt = Field(
        8 * MIB, description="Bytes of one image, as a file; limits.body_bytes_max is above it."
    )
    images_max: PositiveInt = Field(
        32, description="Images of one context, those of earlier turns among them."
    )
    context_bytes_max: PositiveInt = Field(
        32 * MIB, description="Bytes of all images of one context together, as files."
    )
    held_bytes_max: PositiveInt = Field(
        512 * MIB,
        description="Bytes of fetched images in this process, from their first byte to the end of "
        "the response that they are shown for.",
    )
    tenant_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="The part of held_bytes_max and of all fetches that one tenant may have.",
    )
    public: bool = Field(
        default=True, description="Whether images may be fetched from the public internet."
    )
    allowed_networks: tuple[Annotated[str, AfterValidator(network)], ...] = Field(
        (), description="Networks of one's own that they may be fetched in, such as 10.20.0.0/16."
    )
    allowed_hosts: tuple[Annotated[str, AfterValidator(known_host)], ...] = Field(
        (), description="Hosts of one's own that they may be fetched at, such as wiki.internal:80."
    )
    user_agent: Annotated[str, AfterValidator(printable)] = Field(
        "HarmonyGateway/1.0", description="How the gateway introduces itself."
    )

    @model_validator(mode="after")
    def _nested(self) -> Self:
        # A bound within another must not be above it.
        if self.bytes_max > self.context_bytes_max:
            raise ValueError("bytes_max of one image is above context_bytes_max of all of them")
        if self.context_bytes_max > self.held_bytes_max * self.tenant_share:
            raise ValueError(
                "context_bytes_max is above tenant_share of held_bytes_max: such a context could "
                "never be shown"
            )
        return self
