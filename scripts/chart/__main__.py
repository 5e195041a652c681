"""`make chart-schema` and `make chart-render`: write anew what is derived of the Helm chart."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.chart.goldens import CASES, SCHEMA, HelmError, stage, text_of
from scripts.chart.schema import encoded, with_settings


def write_schema() -> None:
    schema = json.loads(SCHEMA.read_text("utf-8"))
    SCHEMA.write_text(encoded(with_settings(schema)), "utf-8")


def write_goldens() -> None:
    with TemporaryDirectory() as folder:
        chart = stage(Path(folder))
        for case in CASES:
            (case / "rendered.yaml").write_text(text_of(case, chart), "utf-8")


try:
    {"schema": write_schema, "render": write_goldens}[sys.argv[1]]()
except HelmError as error:
    sys.exit(str(error))
