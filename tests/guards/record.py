"""Record what the workloads cost now: `python -m tests.guards.record`, for one version of Python."""

from __future__ import annotations

from tests.guards.recorded import VERSION, counted, write


def main() -> None:
    """Write the numbers, and say so."""
    costs = counted()
    write(costs)
    print(f"recorded {len(costs)} workloads for Python {VERSION}")


if __name__ == "__main__":
    main()
