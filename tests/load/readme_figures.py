"""The README's table of what the gateway costs: made of what `make bench` measured last.

`results/readme.json` has the figures of each workload, with the commit that they were measured at.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any, Final

from tests.load.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMITS_MAX: Final = 200
"""How many commits later the figures have to be measured again."""
DATA: Final = ROOT / "tests" / "load" / "results" / "readme.json"
README: Final = ROOT / "README.md"
FIGURES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "b": (("foreground", "cpu_us"), ("nginx", "cpu_us")),
    "h": (("saturated", "tokens_per_s"),),
    "e": (("foreground", "idle_rss_mib"), ("foreground", "stream_pss_kib")),
}
"""Row and name of each figure that is kept of a workload."""
_SECTION: Final = re.compile(r"\| \| gateway \| beside it.*?\nMeasured on [^(]*(?= \()", re.DOTALL)

Measured = dict[str, dict[str, Any]]


def read() -> Measured:
    measured: Measured = json.loads(DATA.read_text("utf-8"))
    return measured


def updated(known: Measured, document: dict[str, Any]) -> Measured:
    """Return the figures with those of a saved run; of a workload all of them, or none."""
    machine = document["machine"]
    stamp = {"commit": machine["commit"].rstrip("+"), "cores": machine["cores"]}
    result = dict(known)
    for workload in document["workloads"]:
        kept, rows = FIGURES.get(workload["letter"], ()), workload["rows"]
        if kept and all(name in rows.get(row, {}) for row, name in kept):
            medians = {f"{row} {name}": rows[row][name][0] for row, name in kept}
            result[workload["letter"]] = {**stamp, **medians}
    return result


def section(measured: Measured) -> str:
    """Return the table, and the beginning of the sentence below it."""
    cpu, durable, memory = measured["b"], measured["h"], measured["e"]
    idle, stream = memory["foreground idle_rss_mib"], memory["foreground stream_pss_kib"]
    commits = sorted({str(one["commit"]) for one in measured.values() if one["commit"]})
    at = f" at `{'`, `'.join(commits)}`" if commits else ""
    if before := sorted(letter for letter, one in measured.items() if not one["commit"]):
        at += f", `ONLY={','.join(before)}` before that"
    return f"""\
| | gateway | beside it | command |
|---|---|---|---|
| CPU per token, 64 streams of 50 tokens/s | {cpu["foreground cpu_us"]:.0f} μs | \
nginx {cpu["nginx cpu_us"]:.0f} | `make bench ONLY=b` |
| durable tokens a second per process | {durable["saturated tokens_per_s"]:,.0f} | | \
`make bench ONLY=h` |
| memory of an idle process, per stream | {idle:.0f} MiB, {stream:.0f} KiB | | \
`make bench ONLY=e` |

Measured on {cpu["cores"]} cores{at}"""


def in_readme() -> str:
    (found,) = _SECTION.findall(README.read_text("utf-8"))
    return str(found)


def keep(document: dict[str, Any]) -> None:
    """Write the figures of a saved run into the data file and into the README."""
    measured = updated(read(), document)
    DATA.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    text = README.read_text("utf-8")
    README.write_text(_SECTION.sub(lambda _: section(measured), text), "utf-8")


def commits_since(commit: str) -> int | None:
    """Count the commits after this one; None in a checkout that does not have it."""
    counting = ["git", "rev-list", "--count", f"{commit}..HEAD"]
    try:
        counted = subprocess.run(counting, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return int(counted.stdout) if counted.returncode == 0 else None
