"""What fair turns change for small tenants: `python -m tests.load.fairness`.

`tests.fakes.fair_load` in simulated time, through the real queue: it takes seconds, and has the
same result on any machine.
"""

from __future__ import annotations

from tests.fakes.fair_load import Load


def main() -> None:
    for name, is_fair in (("first come, first served", False), ("fair", True)):
        load = Load(is_fair=is_fair)
        load.run()
        waits = load.waits_of_small()
        p50, p95, p99 = (waits[int(share * len(waits))] for share in (0.5, 0.95, 0.99))
        total = sum(load.generated.values())
        shares = {name: load.generated[name] / total for name in ("long", "flood")}
        shares["small"] = 1 - sum(shares.values())
        small_refused = sum(n for name, n in load.refused.items() if name.startswith("small"))
        print(
            f"{name}: the small ones wait {p50:.2f} / {p95:.2f} / {p99:.2f} s, {small_refused} of "
            f"them are refused; {total / 1e6:.2f} M tokens, of which "
            + ", ".join(f"{of} {share:.0%}" for of, share in shares.items())
        )


if __name__ == "__main__":
    main()
