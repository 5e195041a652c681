"""(q) What traces cost: off, beside a gateway that cannot have them, and on."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tests.fakes.collector import collector
from tests.load import loading
from tests.load.figures import Column, Target
from tests.load.systems import FOREGROUND, SYSTEMS
from tests.load.workloads import documents, streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.load.figures import Figures
    from tests.load.loading import Load
    from tests.load.stack import Stack

WITHOUT: Final = "without"
OFF: Final = "off"
SHARE: Final = "on, 1 %"
ALL: Final = "on, all"
OFF_LIMIT: Final = 1.01
SHARE_LIMIT: Final = 1.05


@dataclass(frozen=True, slots=True)
class Variant:
    """How a gateway is started."""

    module: str = "gateway"
    telemetry: Mapping[str, Any] = field(default_factory=dict)


VARIANTS: Final = {
    WITHOUT: Variant(module="tests.load.untraced"),
    OFF: Variant(),
    SHARE: Variant(telemetry={"traces": True}),
    ALL: Variant(telemetry={"traces": True, "trace_share": 1.0}),
}
_FIGURES: Final = {"cpu_us": "CPU per token", "cpu_ms_per_request": "CPU per request"}


class Traces:
    """Two processes of the same program differ, too: by a hundredth or two."""

    letter = "q"
    title = f"traces: {streams.PACED.title}, and {documents.Documents.title}"
    is_quick = False
    columns = (
        Column("CPU μs/token", "cpu_us", 2),
        Column(f"x {WITHOUT}", "cpu_us", 3, "times", WITHOUT),
        Column("CPU ms/request", "cpu_ms_per_request", 3),
        Column(f"x {WITHOUT}", "cpu_ms_per_request", 3, "times", WITHOUT),
    )
    targets = tuple(
        Target(row, title, figure, limit, "times", WITHOUT)
        for row, limit in ((OFF, OFF_LIMIT), (SHARE, SHARE_LIMIT))
        for figure, title in _FIGURES.items()
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return list(VARIANTS) if FOREGROUND in stack.offered else []

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        paced = streams.PACED.quick_load if quick else streams.PACED.load
        short = replace(documents.LOAD, requests=400) if quick else documents.LOAD
        with collector() as receiver, ExitStack() as running:
            environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}"}
            children = {
                row: running.enter_context(
                    stack.fresh(
                        "gateway", module=one.module, environ=environ, telemetry=one.telemetry
                    )
                )
                for row, one in VARIANTS.items()
            }

            def measured(row: str, load: Load) -> Figures:
                return loading.measure(stack, SYSTEMS[FOREGROUND], load, children=[children[row]])

            for row in VARIANTS:
                measured(row, streams.WARM_UP)
                measured(row, documents.WARM_UP)
            yield lambda row: {
                "cpu_us": measured(row, paced)["cpu_us"],
                "cpu_ms_per_request": measured(row, short)["cpu_ms_per_request"],
            }
