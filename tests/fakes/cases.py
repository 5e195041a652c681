"""Many cases of one rule in one test: pytest takes longer to prepare a case than these to run."""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Test = Callable[..., None]


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Decorate a test like `pytest.mark.parametrize`. All cases are run, whichever of them fail.

    For tests without fixtures: those would be the same for each case.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    values = [tuple(case) if len(keys) > 1 else (case,) for case in cases]
    assert values, "a test without cases tests nothing"

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(**others: Any) -> None:
            failures = []
            for case in values:
                try:
                    test(**others, **dict(zip(keys, case, strict=True)))
                except Exception as error:  # noqa: BLE001
                    error.add_note(f"in the case of {dict(zip(keys, case, strict=True))!r}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(values)} cases failed", failures)

        del run.__dict__["__wrapped__"]  # pytest would take the cases for fixtures
        left = [one for name, one in signature(test).parameters.items() if name not in keys]
        run.__dict__["__signature__"] = signature(test).replace(parameters=left)
        return run

    return decorate
