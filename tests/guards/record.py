"""Records what the workloads cost under this version of Python: `python -m tests.guards.record`."""

from __future__ import annotations

from tests.guards.recorded import VERSION, counted, write


def main() -> None:
    """Write the numbers, and say so."""
    costs = counted()
    write(costs)
    print(f"recorded {len(costs)} workloads for Python {VERSION}")


if __name__ == "__main__":
    main()
