"""EndpointSlices of Kubernetes (discovery.k8s.io/v1): which servers they name. No I/O here.

An endpoint counts that is ready. One that ends is not, even while it still serves: what it has
begun it may finish. A server that has addresses of both families stands in two slices, and is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FAMILIES: Final = ("IPv4", "IPv6", "FQDN")


class Endpoint(NamedTuple):
    """A server that is ready: the pod's name, or its place; and `host:port`."""

    name: str
    place: str


def endpoints(slices: Iterable[Mapping[str, Any]], port: int | None) -> list[Endpoint]:
    """The ready endpoints of these slices by name; of several ports `port`, else the first.

    Slices are what others wrote: what is not as it should be is left out.
    """
    found: dict[str, Endpoint] = {}
    by_family = sorted(
        (one for one in slices if one.get("addressType") in _FAMILIES),
        key=lambda one: (_FAMILIES.index(one["addressType"]), _name(one)),
    )
    for one in by_family:
        number = _port(one, port)
        if number is None:
            continue
        for endpoint in _objects(one.get("endpoints")):
            known = _endpoint(endpoint, number, is_v6=one["addressType"] == "IPv6")
            if known is not None:
                found.setdefault(known.name, known)
    return sorted(found.values())


def key_of(slice_: Mapping[str, Any]) -> str:
    """What tells a slice from others of its namespace."""
    return _name(slice_)


def version_of(thing: Mapping[str, Any]) -> str:
    """Of an object or a list: where in the history of all it stands; empty: it does not say."""
    version = _object(thing.get("metadata")).get("resourceVersion")
    return version if isinstance(version, str) else ""


def _endpoint(endpoint: Mapping[str, Any], port: int, *, is_v6: bool) -> Endpoint | None:
    conditions = _object(endpoint.get("conditions"))
    if conditions.get("ready") is False or conditions.get("terminating") is True:
        return None
    addresses = endpoint.get("addresses")
    # Consumers are told to use the first; the others are of the same server.
    if not isinstance(addresses, list) or not addresses or not isinstance(addresses[0], str):
        return None
    place = f"[{addresses[0]}]:{port}" if is_v6 else f"{addresses[0]}:{port}"
    target = _object(endpoint.get("targetRef"))
    name = target.get("name") if target.get("kind") == "Pod" else None
    return Endpoint(name if isinstance(name, str) and name else place, place)


def _port(slice_: Mapping[str, Any], wanted: int | None) -> int | None:
    numbers = [one["port"] for one in _objects(slice_.get("ports")) if type(one.get("port")) is int]
    if wanted is None:
        return numbers[0] if numbers else None
    return wanted if wanted in numbers else None


def _name(slice_: Mapping[str, Any]) -> str:
    name = _object(slice_.get("metadata")).get("name")
    return name if isinstance(name, str) else ""


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
