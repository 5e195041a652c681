"""Reports of inference servers on their load, in each format that they have. No I/O here.

vLLM reports it on `/metrics`, in Prometheus' format; so does SGLang where it was started with
`--enable-metrics`, under names of its own. SGLang reports more on `/v1/loads`. A server that
reports nothing is sent requests all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

METRICS_PATH: Final = "/metrics"
LOADS_PATH: Final = "/v1/loads"
SGLANG: Final = "\nsglang:"
"""Begins a line of SGLang's metrics."""
BYTES_MAX: Final = 1 << 20
_WAITING: Final = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs"})
_RUNNING: Final = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs"})
_BEGAN: Final = "process_start_time_seconds"
_CAPACITY: Final = "sglang:max_total_num_tokens"
_CACHE: Final = "vllm:cache_config_info"
_SAMPLE: Final = re.compile(
    r"^(?P<name>vllm:(?:num_requests_waiting|num_requests_running|cache_config_info)"
    r"|sglang:(?:num_queue_reqs|num_running_reqs|max_total_num_tokens)"
    r"|process_start_time_seconds)"
    r"(?:\{(?P<labels>[^}\n]*)\})? (?P<value>[0-9.eE+-]{1,32})",
    re.MULTILINE,
)
_RANK: Final = re.compile(r'\b(?:engine|dp_rank)="(\d{1,9})"')
"""What vLLM and SGLang call a data parallel rank among the labels."""
_BLOCKS: Final = re.compile(r'\bnum_gpu_blocks="(\d{1,12})"')
_BLOCK_SIZE: Final = re.compile(r'\bblock_size="(\d{1,12})"')


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """Requests that wait and that run, when the process began (unix seconds), how many tokens it
    keeps, and how many requests it runs at once. None: it does not say.
    """

    waiting: int | None = None
    running: int | None = None
    epoch: int | None = None
    kv_tokens: int | None = None
    places: int | None = None


NO_LOAD: Final = ReportedLoad()


def from_metrics(text: str, rank: int | None = None) -> ReportedLoad:
    """Parse Prometheus' text. Never raises.

    Several engines behind one server are added up, unless only one `rank` is requested: what the
    server does not report by rank is then unknown.
    """
    sums: dict[str, float] = {}
    blocks: int | None = None
    for name, labels, value in _samples(text):
        if rank is not None and name != _BEGAN and _rank_of(labels) != rank:
            continue
        if name == _CACHE:
            blocks = (blocks or 0) + _tokens_of_cache(labels)
        elif name == _BEGAN:
            sums[name] = max(sums.get(name, 0.0), value)
        else:
            sums[name] = sums.get(name, 0.0) + value
    capacity = blocks or _whole(sums.get(_CAPACITY))
    return ReportedLoad(
        waiting=_first(sums, _WAITING),
        running=_first(sums, _RUNNING),
        epoch=_whole(sums.get(_BEGAN)),
        kv_tokens=capacity or None,
    )


def from_loads(body: bytes, rank: int | None = None) -> ReportedLoad:
    """Parse the JSON of SGLang's `/v1/loads`. Never raises.

    Ranks of one server are added up, unless only one `rank` is requested.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ReportedLoad()
    ranks = document.get("loads") if isinstance(document, dict) else document
    if not isinstance(ranks, list):
        ranks = [document]
    rows = [
        row
        for row in ranks
        if isinstance(row, dict) and (rank is None or row.get("dp_rank") == rank)
    ]
    return ReportedLoad(
        waiting=_sum_column(rows, "num_waiting_reqs"),
        running=_sum_column(rows, "num_running_reqs"),
        kv_tokens=_sum_column(rows, "max_total_num_tokens") or None,
        places=_sum_column(rows, "max_running_requests") or None,
    )


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    for found in _SAMPLE.finditer(text):
        try:
            yield found["name"], found["labels"] or "", float(found["value"])
        except ValueError:
            continue


def _rank_of(labels: str) -> int | None:
    found = _RANK.search(labels)
    return int(found[1]) if found else None


def _tokens_of_cache(labels: str) -> int:
    blocks, size = _BLOCKS.search(labels), _BLOCK_SIZE.search(labels)
    return int(blocks[1]) * int(size[1]) if blocks and size else 0


def _first(sums: Mapping[str, float], names: frozenset[str]) -> int | None:
    return next((_whole(sums[name]) for name in sorted(names) if name in sums), None)


def _whole(value: float | None) -> int | None:
    # None if it is not a plausible number of requests, tokens or seconds.
    return int(value) if value is not None and 0 <= value < 2**40 else None


def _sum_column(rows: list[dict[str, Any]], name: str) -> int | None:
    values = [row[name] for row in rows if type(row.get(name)) is int and row[name] >= 0]
    return sum(values) if values else None
