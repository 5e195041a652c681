"""Panels and boards for Grafana, with Grafana's own SDK.

They are of the classic model, which every Grafana from 10 to 13 loads from files. Its successor,
which the SDK prefers, is for 13 alone; 13 converts as it loads.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    DataSourceRef,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.models.dashboard import Panel

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "observability" / "dashboards"
SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "harmony-gateway"
JOB: Final = 'job="gateway"'
"""The name of the scrape job, which `rules.yaml` expects, too."""
COLUMNS: Final = 24
STAT_HEIGHT: Final = 4
HEIGHT: Final = 8
SHOWN: Final = 'instance=~"$instance"'
COLORS: Final = ("green", "orange", "red")


class Query(NamedTuple):
    """An expression and the legend of its series."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: Sequence[Builder[Panel]]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard; `question` is what its reader wants to know."""

    name: str
    question: str
    rows: Sequence[Row]
    since: str = "now-3h"


def of(metric: str, *matchers: str) -> str:
    """Return the selector of a metric at the replicas that the board shows."""
    return f"{metric}{{{','.join((SHOWN, *matchers))}}}"


def rate(metric: str, *matchers: str) -> str:
    return f"rate({of(metric, *matchers)}[$__rate_interval])"


def rate_by(labels: str, metric: str, *matchers: str) -> Query:
    """Return the events a second of a counter, by labels such as `model, type`."""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    return Query(f"sum by ({labels}) ({rate(metric, *matchers)})", legend)


def total(metric: str, legend: str, *matchers: str) -> Query:
    return Query(f"sum({rate(metric, *matchers)})", legend)


def percentiles(histogram: str, *matchers: str) -> list[Query]:
    buckets = f"sum by (le) ({rate(f'{histogram}_bucket', *matchers)})"
    return [
        Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)
    ]


def p95_by(label: str, histogram: str) -> Query:
    buckets = f"sum by (le, {label}) ({rate(f'{histogram}_bucket')})"
    return Query(f"histogram_quantile(0.95, {buckets})", f"{{{{{label}}}}}")


def number(
    title: str, question: str, expression: str, unit: str = "short", *levels: float, width: int = 4
) -> Builder[Panel]:
    """Return a panel with one value now.

    It is orange from the first of `levels` on and red from the second on, or below them if they
    fall.
    """
    return (
        stat.Panel()
        .title(title)
        .description(question)
        .datasource(SOURCE)
        .height(STAT_HEIGHT)
        .span(width)
        .unit(unit)
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.NONE)
        .reduce_options(_newest())
        .thresholds(_levels(levels))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .with_target(_target(Query(expression, ""), 0).instant())
    )


def lines(
    title: str,
    question: str,
    queries: Sequence[Query],
    unit: str = "short",
    *levels: float,
    width: int = 8,
    is_stacked: bool = False,
) -> Builder[Panel]:
    """Return a panel with series over time; `levels` are drawn as lines."""
    stacking = StackingMode.NORMAL if is_stacked else StackingMode.NONE
    panel = (
        timeseries.Panel()
        .title(title)
        .description(question)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(width)
        .unit(unit)
        .min(0)
        .fill_opacity(30 if is_stacked else 8)
        .line_width(1)
        .show_points(VisibilityMode.NEVER)
        .stacking(common.StackingConfig().mode(stacking))
        .thresholds(_levels(levels))
        .thresholds_style(
            common.GraphThresholdsStyleConfig().mode(
                GraphThresholdsStyleMode.DASHED if levels else GraphThresholdsStyleMode.OFF
            )
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(
            common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        )
    )
    for place, query in enumerate(queries):
        panel.with_target(_target(query, place).range())
    return panel


def states(title: str, question: str, query: Query, *, width: int = 8) -> Builder[Panel]:
    """Return a panel with a band for each series that is 1 (up) or 0 (down)."""
    words = {
        "0": ValueMappingResult(text="down", color="red", index=0),
        "1": ValueMappingResult(text="up", color="green", index=1),
    }
    return (
        statetimeline.Panel()
        .title(title)
        .description(question)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(width)
        .mappings([ValueMap(words)])
        .show_value(VisibilityMode.NEVER)
        .merge_values(True)
        .with_target(_target(query, 0).range())
    )


def bars(
    title: str, question: str, query: Query, unit: str = "short", *, width: int = 8
) -> Builder[Panel]:
    """Return a panel with a bar for each series, of the whole time that the board shows."""
    return (
        bargauge.Panel()
        .title(title)
        .description(question)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(width)
        .unit(unit)
        .min(0)
        .orientation(VizOrientation.HORIZONTAL)
        .display_mode(BarGaugeDisplayMode.BASIC)
        .reduce_options(_newest())
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
        .with_target(_target(query, 0).instant())
    )


def encoded(board: Board) -> str:
    """Return the JSON of a board."""
    made = (
        dashboard.Dashboard(f"Harmony Gateway / {board.name}")
        .uid(f"{TAG}-{board.name.lower()}")
        .description(board.question)
        .tags([TAG])
        .time(board.since, "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .with_variable(_source_variable())
        .with_variable(_instance_variable())
        .link(_link_to_others())
    )
    for annotation in _annotations():
        made.annotation(annotation)
    for row in board.rows:
        made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            made.with_panel(deepcopy(panel))  # placing a panel changes it
    result = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    for place, panel in enumerate(result["panels"], 1):
        panel["id"] = place
    for control in (*result["links"], *result["annotations"]["list"]):
        del control["placement"]  # the SDK's hides it in a menu
    return json.dumps(result, indent=1, sort_keys=True) + "\n"


def _newest() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def _target(query: Query, place: int) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expression).ref_id("ABCDEFGH"[place])
    return made.datasource(SOURCE).legend_format(query.legend)


def _levels(levels: Sequence[float]) -> dashboard.ThresholdsConfig:
    # Grafana's first level has no value; levels that fall are colored from red to green.
    colors = COLORS[: len(levels) + 1]
    if list(levels) != sorted(levels):
        levels, colors = levels[::-1], ("red", *reversed(COLORS[: len(levels)]))
    steps = [Threshold(value=None, color=colors[0])]
    steps += [
        Threshold(value=value, color=color) for value, color in zip(levels, colors[1:], strict=True)
    ]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _source_variable() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _instance_variable() -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable("instance")
        .label("Replica")
        .datasource(SOURCE)
        .query(f"label_values(up{{{JOB}}}, instance)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
        .hide(VariableHide.DONT_HIDE)
    )


def _link_to_others() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("Harmony Gateway")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )


def _annotations() -> list[dashboard.AnnotationQuery]:
    starts = (
        dashboard.AnnotationQuery()
        .name("Starts")
        .expr(f"process_start_time_seconds{{{JOB}}} * 1000")
        .use_value_for_time(True)
        .title_format("{{instance}} started")
        .icon_color("blue")
    )
    alerts = (
        dashboard.AnnotationQuery()
        .name("Alerts")
        .expr('ALERTS{alertstate="firing",severity="page"}')
        .title_format("{{alertname}}")
        .icon_color("red")
    )
    return [one.datasource(SOURCE).enable(True).hide(False).step("30s") for one in (starts, alerts)]
