"""`make release-candidate`: build what a release consists of, and say what is missing."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from scripts.release.artifacts import build, list_components, write_sums
from scripts.release.checks import CHECKS, version_of

ROOT: Final = Path(__file__).parents[2]
DIST: Final = ROOT / "dist"


def main(cyclonedx: str) -> int:
    """Return the exit code: 1 if something is missing. Nothing is published."""
    missing = [line for check in CHECKS for line in check(ROOT)]
    shutil.rmtree(DIST, ignore_errors=True)
    files = [*build(ROOT, DIST), list_components(ROOT, DIST, Path(cyclonedx))]
    print(f"built in {DIST.name}/:\n{write_sums(files, DIST)}")
    if missing:
        print(f"missing for {version_of(ROOT)}:")
        print("".join(f"- {line}\n" for line in missing), end="")
        return 1
    print(f"nothing is missing: tag it (git tag -s v{version_of(ROOT)}) and publish dist/")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
