"""What `serve` refuses although every setting by itself is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import ConfigError, StartupError
from gateway.store.postgres.connection import driver_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.settings import Settings


def require_complete(settings: Settings) -> None:
    """Raise one `ConfigError` that lists all of it, each with what to do."""
    found = list(_gaps(settings))
    if not found:
        return
    first, *others = found
    raise ConfigError(
        "\n".join([str(first).removeprefix(f"{first.where}: "), *map(str, others)]),
        where=first.where,
        remedy="\n  ".join(one.remedy for one in found),
    )


def _gaps(settings: Settings) -> Iterator[ConfigError]:
    if not settings.backends:
        yield ConfigError(
            "no backend is configured",
            where="backends",
            remedy="Name one in gateway.yaml (see gateway.example.yaml), or run: "
            "harmony-gateway demo",
        )
    database = settings.database
    if database.url is not None:
        try:
            _ = settings.pepper
        except ConfigError as error:
            yield error
    for name, url in (("url", database.url), ("listen_url", database.listen_url)):
        try:
            if url is not None:
                driver_url(url.get_secret_value())
        except StartupError as error:
            yield ConfigError(str(error), where=f"database.{name}", remedy=error.remedy)
