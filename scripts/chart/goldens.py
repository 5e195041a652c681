"""The chart's value sets and what they render to, kept in tests/data/chart.

They are rendered from a copy of the chart that has neither a version nor our own alerts and boards,
so that goldens change with templates and values alone. A digest of these stands in each: a test
finds goldens that are older, also where there is no Helm.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from typing_extensions import override

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "chart"
SCHEMA: Final = CHART / "values.schema.json"
DATA: Final = ROOT / "tests" / "data" / "chart"
CASES: Final = sorted(path.parent for path in DATA.glob("*/values.yaml"))
OBSERVABILITY: Final = Path("files", "observability")
"""Where the chart has alerts and boards: a link to deploy/observability."""
Object = dict[str, Any]
RELEASE, NAMESPACE = "gateway", "llm"
HELM_TIMEOUT_S: Final = 60
KUBERNETES: Final = ("1.27", "1.37")
"""The oldest release that the chart allows, and the newest one whose schemas there are."""
_OWN_HELM: Final = ROOT / ".make" / "helm" / "bin" / "helm"
_HEADER: Final = "# `make chart-render` wrote this from sources with the digest {}.\n"


class HelmError(Exception):
    """Helm's words."""


class _Blocks(yaml.SafeDumper):
    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Blocks.add_representer(str, _text)


@cache
def helm() -> str | None:
    """Return the program: ours, or else that of the machine; None if there is none."""
    return str(_OWN_HELM) if _OWN_HELM.exists() else shutil.which("helm")


def run(*arguments: str | Path) -> str:
    """Return what Helm prints. Raises `HelmError` if it fails."""
    program = helm()
    if program is None:
        raise HelmError("there is no helm: `make helm` installs it")
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=HELM_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise HelmError(done.stderr or done.stdout)
    return done.stdout


def rendered(chart: Path, *options: str | Path) -> list[Object]:
    """Return the objects of a release, in an order that no version of Helm changes."""
    where = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES[-1])
    text = run("template", RELEASE, chart, *where, *options)
    return sorted(filter(None, yaml.safe_load_all(text)), key=identity)


def identity(one: Object) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


def stage(folder: Path) -> Path:
    """Copy the chart without its version, with the alerts and boards of the test."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart, symlinks=True)
    (chart / OBSERVABILITY).unlink()
    shutil.copytree(DATA / "observability", chart / OBSERVABILITY)
    described = yaml.safe_load((chart / "Chart.yaml").read_text("utf-8"))
    described |= {"version": "0.0.0", "appVersion": "0.0.0"}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(described), "utf-8")
    return chart


def digest(case: Path) -> str:
    """Return the digest of all that decides what a value set renders to."""
    observability = DATA / "observability"
    sources = [
        *(CHART / "templates").rglob("*"),
        *(CHART / "files").glob("*.py"),
        *observability.rglob("*"),
        CHART / "values.yaml",
        case / "values.yaml",
    ]
    total = hashlib.sha256()
    for source in sorted(path for path in sources if path.is_file()):
        total.update(source.relative_to(ROOT).as_posix().encode())
        total.update(source.read_bytes())
    return total.hexdigest()


def golden(case: Path) -> str:
    return (case / "rendered.yaml").read_text("utf-8")


def text_of(case: Path, chart: Path) -> str:
    """Render a value set from a staged chart."""
    objects = rendered(chart, "--values", case / "values.yaml")
    documents = yaml.dump_all(objects, Dumper=_Blocks, sort_keys=False, width=120)
    return header(case) + documents


def header(case: Path) -> str:
    return _HEADER.format(digest(case))
