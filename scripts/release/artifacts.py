"""The files of a release: wheel, source distribution, list of components, hashes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from scripts.release.checks import git, version_of

if TYPE_CHECKING:
    from pathlib import Path

SUMS: Final = "SHA256SUMS"


def build(root: Path, folder: Path) -> list[Path]:
    """Build the source distribution of `root`, and the wheel, with the time of the last commit.

    Raises `CalledProcessError`.
    """
    environ = {**os.environ, "SOURCE_DATE_EPOCH": git(root, "log", "-1", "--format=%ct").strip()}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(command, cwd=root, env=environ, check=True, capture_output=True)
    return sorted(folder.glob(f"harmony_gateway-{version_of(root)}*"))


def list_components(root: Path, folder: Path, cyclonedx: Path) -> Path:
    """Write the components that requirements.lock pins, in CycloneDX's format.

    `cyclonedx` is the program. Raises `CalledProcessError`.
    """
    file = folder / f"harmony_gateway-{version_of(root)}.cdx.json"
    lock, project = root / "requirements.lock", root / "pyproject.toml"
    command = [str(cyclonedx), "requirements", str(lock), "--pyproject", str(project)]
    command += ["--output-reproducible", "--validate", "--of", "JSON", "-o", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file


def write_sums(files: list[Path], folder: Path) -> str:
    """Write and return the hashes of the files, as `sha256sum --check` reads them."""
    sums = "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files
    )
    (folder / SUMS).write_text(sums, "ascii")
    return sums
