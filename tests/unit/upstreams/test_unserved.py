"""What is configured and served nowhere."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.upstreams.backend import Backend
from gateway.upstreams.engines import Unusable
from gateway.upstreams.served_models import NAMES_MAX, overlooked, unserved


@dataclass
class Told:
    backend: Backend
    listed: tuple[str, ...] | None
    models: dict[str, int | None]
    unusable: Unusable | None = None


def told(name: str, wanted: dict[str, str], listed: tuple[str, ...] | None, *served: str) -> Told:
    return Told(Backend(name, "http://h", wanted), listed, dict.fromkeys(served, 9))


def test_it_is_said_who_serves_what_instead_and_who_is_silent() -> None:
    wanted = {"m": "inner"}
    found = unserved(
        [told("gpu-0", wanted, ("a", "b")), told("gpu-1", wanted, None), told("gpu-2", wanted, ())]
    )
    assert list(map(str, found)) == [
        "no backend serves the model 'm' (served_as 'inner'): gpu-0 serves 'a', 'b'; "
        "gpu-2 serves nothing; gpu-1 has not answered yet"
    ]


def test_nothing_is_missing_that_one_backend_serves() -> None:
    wanted = {"m": "m", "n": "n"}
    both = [told("gpu-0", wanted, ("m",), "m"), told("gpu-1", wanted, ("n",), "n")]
    assert unserved(both) == []


def test_nothing_is_said_before_anybody_has_spoken() -> None:
    assert unserved([told("gpu-0", {"m": "m"}, None)]) == []
    assert unserved([told("gpu-0", {}, ("m",), "m")]) == []


def test_a_backend_that_is_not_used_does_not_count() -> None:
    old = told("gpu-0", {"m": "m"}, ())
    old.unusable = Unusable("old", "Upgrade it.")
    assert unserved([old]) == []


def test_of_many_models_some_are_named() -> None:
    listed = tuple(f"ad-{number}" for number in range(100))
    (missing,) = unserved([told("gpu-0", {"m": "m"}, listed)])
    assert f"'ad-{NAMES_MAX - 1}' and {100 - NAMES_MAX} more" in str(missing)
    assert f"'ad-{NAMES_MAX}'" not in str(missing)


def test_what_a_backend_could_be_used_for_is_told() -> None:
    wanted = {"m": "m", "n": "n"}
    assert overlooked(told("gpu-0", wanted, ("b/m", "n"), "n")).startswith(
        "it serves 'b/m', which is not used for the model 'm'"
    )
    idle = told("gpu-0", wanted, ("x",))
    assert overlooked(idle) == "it serves 'x', of which nothing is asked"


def test_a_backend_that_serves_some_of_the_models_is_as_it_should_be() -> None:
    wanted = {"m": "m", "n": "n"}
    assert not overlooked(told("gpu-0", wanted, ("m", "x"), "m"))
    assert not overlooked(told("gpu-0", {}, ("m",), "m"))
    assert not overlooked(told("gpu-0", wanted, None))
    old = told("gpu-0", wanted, ("m",))
    old.unusable = Unusable("old", "Upgrade it.")
    assert not overlooked(old)
