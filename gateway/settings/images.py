"""Images that are shown to models that see."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from gateway.settings.sections import MIB, Section
from gateway.settings.web import known_host, network, printable


class Images(Section):
    """Images in requests, for models whose modalities have image."""

    bytes_max: PositiveInt = Field(
        8 * MIB, description="Bytes of one image, as a file; limits.body_bytes_max is above it."
    )
    images_max: PositiveInt = Field(
        32, description="Images of one context, those of earlier turns among them."
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
    fetch_timeout_s: PositiveFloat = Field(10.0, description="Seconds to fetch one.")
    redirects_max: NonNegativeInt = Field(3, description="Redirects of one URL.")
    visits_max: PositiveInt = Field(16, description="Images fetched at the same time.")
    user_agent: Annotated[str, AfterValidator(printable)] = Field(
        "HarmonyGateway/1.0", description="How the gateway introduces itself."
    )
