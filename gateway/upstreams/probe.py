"""Questions to a backend outside of any request: what it is, whether it is there, how busy it is.

SGLang has `/metrics` only with `--enable-metrics`, and reports more on `/v1/loads`.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import httpx2
import orjson

from gateway.errors import UpstreamUnavailable
from gateway.upstreams.backend import Listed
from gateway.upstreams.engines import KINDS, ChatServer, UnknownEngine
from gateway.upstreams.http.client import read_body
from gateway.upstreams.problems import message_of_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gateway.upstreams.backend import Backend
    from gateway.upstreams.engines import InferenceEngine
    from gateway.upstreams.http.client import Client


_MODELS: Final = "/v1/models"
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
ERROR_BYTES_MAX: Final = 64 * 1024
"""Bytes of answers other than 200, which are read for a message."""
NAME_CHARS_MAX: Final = 1024
"""Characters of a model or a path in a list of models: they are logged and shown."""
_QUESTIONS: Final = tuple((kind, path) for kind in KINDS for path in kind.questions)


@dataclass(frozen=True, slots=True)
class Description:
    """Models by the backend's names; `engine` is None without an answer."""

    models: Mapping[str, Listed]
    engine: InferenceEngine | None = None


class CheckOutcome(Enum):
    WELL = "it is there"
    REFUSES = "it answered, and not that it is well; what it has begun may go on"
    GONE = "there is no connection"
    MUTE = "no answer in time, though to answer takes it no work"
    BUSY = "no answer in time, and to answer takes it work"


LATE: Final = frozenset({CheckOutcome.MUTE, CheckOutcome.BUSY})
"""Outcomes of a backend that is gone, or starved and serving all the same."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """Result of a health check, with its `cause` for operators."""

    outcome: CheckOutcome
    cause: str | None = None

    @property
    def is_well(self) -> bool:
        return self.outcome is CheckOutcome.WELL


async def describe(client: Client, backend: Backend, *, timeout_s: float) -> Description:
    """Ask for models and engine. Raises UpstreamUnavailable without models."""
    status, models = await _get(client, backend, _MODELS, timeout_s)
    if status != 200:
        raise UpstreamUnavailable(
            f"GET /v1/models answered {status}: {message_of_body(models)}", upstream=backend.name
        )
    engine = await _engine(client, backend, timeout_s, {_MODELS: (status, models)})
    return Description(served_models(models), engine)


async def _engine(
    client: Client, backend: Backend, timeout_s: float, answers: dict[str, tuple[int, bytes]]
) -> InferenceEngine | None:
    # None if it does not answer in time, or with a 5xx: a busy scheduler keeps SGLang from
    # answering, which says nothing about the engine. `answers` has those that were already read.
    try:
        async with asyncio.timeout(timeout_s):
            for kind, path in _QUESTIONS:
                if path not in answers:
                    answers[path] = await _get(client, backend, path, timeout_s)
                status, body = answers[path]
                if status >= 500:
                    return None
                engine = kind.read(path, _json_object(body)) if status == 200 else None
                if engine is not None:
                    return engine
    except (TimeoutError, UpstreamUnavailable):
        return None
    return _unidentified(backend)


def _unidentified(backend: Backend) -> InferenceEngine:
    return ChatServer() if backend.is_chat_only else UnknownEngine()


async def check(
    client: Client,
    backend: Backend,
    engine: InferenceEngine | None,
    *,
    timeout_s: float,
    working_s: float,
) -> HealthCheck:
    """Check the health by the engine's flag; only if that says no, by work of the engine."""
    kind = engine or _unidentified(backend)
    health_check = await _ask(client, backend, kind.flag, timeout_s, late=CheckOutcome.MUTE)
    if kind.working_check is None or health_check.outcome is not CheckOutcome.REFUSES:
        return health_check
    return await _ask(client, backend, kind.working_check, working_s, late=CheckOutcome.BUSY)


async def _ask(
    client: Client, backend: Backend, path: str, timeout_s: float, *, late: CheckOutcome
) -> HealthCheck:
    try:
        status, _ = await _get(client, backend, path, timeout_s)
    except UpstreamUnavailable as error:
        cause = error.__cause__
        if isinstance(cause, httpx2.PoolTimeout):
            # Refused by our own bound on connections: the backend is busy with us, hence there.
            return HealthCheck(CheckOutcome.WELL)
        if isinstance(cause, TimeoutError | httpx2.TimeoutException):
            return HealthCheck(late, f"GET {path}: no answer within {timeout_s:g} s")
        return HealthCheck(CheckOutcome.GONE, error.reason)
    if status == 200:
        return HealthCheck(CheckOutcome.WELL)
    return HealthCheck(CheckOutcome.REFUSES, f"GET {path} answered {status}")


async def read_load(client: Client, backend: Backend, *, timeout_s: float) -> ReportedLoad:
    """Read the reported load; missing values are unknown."""
    load = NO_LOAD
    with suppress(TimeoutError, UpstreamUnavailable):
        async with asyncio.timeout(timeout_s):
            status, body = await _get(client, backend, METRICS_PATH, timeout_s)
            text = body.decode("utf-8", "replace") if status == 200 else ""
            load = from_metrics(text, backend.dp_rank)
            # Among its metrics SGLang does not say how many requests it runs at once.
            if load.waiting is None or SGLANG in text:
                status, body = await _get(client, backend, LOADS_PATH, timeout_s)
                reported = from_loads(body, backend.dp_rank) if status == 200 else NO_LOAD
                if reported.waiting is not None:
                    load = replace(reported, epoch=load.epoch)
    return load


def served_models(body: bytes) -> dict[str, Listed]:
    """Return the rows of a list of models by name.

    An adapter without a length has its parent's. A row that is its own parent, as some servers
    write it, is no adapter.
    """
    rows = _json_object(body).get("data")
    named = {
        row["id"]: row
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, dict) and _is_name(row.get("id"))
    }
    return {name: _listed_model(name, row, named) for name, row in named.items()}


def _listed_model(
    name: str, row: dict[str, object], named: Mapping[str, dict[str, object]]
) -> Listed:
    parent, root = row.get("parent"), row.get("root")
    if not _is_name(parent) or parent == name:
        return Listed(_length(row))
    length = _length(row) or _length(named.get(parent, {}))
    return Listed(length, parent, root if _is_name(root) else None)


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= NAME_CHARS_MAX


def _length(row: dict[str, object]) -> int | None:
    length = row.get("max_model_len")
    return length if type(length) is int and length > 0 else None


def _json_object(body: bytes) -> dict[str, object]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


async def _get(client: Client, backend: Backend, path: str, timeout_s: float) -> tuple[int, bytes]:
    request = client.build_request(
        "GET", backend.url(path), headers=backend.headers(), timeout=timeout_s
    )
    try:
        return await answer(client, backend, request, timeout_s, ANSWER_BYTES_MAX)
    except UpstreamUnavailable as error:
        if isinstance(error.__cause__, TimeoutError):
            why = f"GET {path}: {error.reason}"
            raise UpstreamUnavailable(why, upstream=backend.name) from error.__cause__
        raise


async def answer(
    client: Client, backend: Backend, request: httpx2.Request, timeout_s: float, bytes_max: int
) -> tuple[int, bytes]:
    """Return status and body of the answer; `bytes_max` is for a 200.

    Raises `UpstreamUnavailable`, whose `__cause__` says why there is none.
    """
    try:
        async with asyncio.timeout(timeout_s):  # for all of it: it may come a byte at a time
            response = await client.send(request, stream=True)
            try:
                status = response.status_code
                size = bytes_max if status == 200 else min(bytes_max, ERROR_BYTES_MAX)
                return status, await read_body(response.aiter_raw(), size)
            finally:
                await response.aclose()
    except TimeoutError as error:
        why = f"no answer within {timeout_s:g} s"
        raise UpstreamUnavailable(why, upstream=backend.name) from error
    except httpx2.TransportError as error:
        why = f"{type(error).__name__}: {error}"
        raise UpstreamUnavailable(why, upstream=backend.name) from error


METRICS_PATH: Final = "/metrics"
LOADS_PATH: Final = "/v1/loads"
SGLANG: Final = "\nsglang:"
_WAITING: Final = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs"})
_RUNNING: Final = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs"})
_KV_USED: Final = frozenset({
    "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage",
})  # fmt: skip
_GENERATED: Final = "vllm:generation_tokens_total"
_SPEED: Final = "sglang:gen_throughput"
_BEGAN: Final = "process_start_time_seconds"
EPOCH_END: Final = 2**32
"""Rows have four bytes for it (`Placement`)."""
_CAPACITY: Final = "sglang:max_total_num_tokens"
_CACHE: Final = "vllm:cache_config_info"
_SAMPLE: Final = re.compile(
    r"^(?P<name>vllm:(?:num_requests_waiting|num_requests_running|cache_config_info"
    r"|kv_cache_usage_perc|gpu_cache_usage_perc|generation_tokens_total)"
    r"|sglang:(?:num_queue_reqs|num_running_reqs|max_total_num_tokens|token_usage|gen_throughput)"
    r"|process_start_time_seconds)"
    r"(?:\{(?P<labels>[^}\n]*)\})? (?P<value>[0-9.eE+-]{1,32})",
    re.MULTILINE,
)
_RANK: Final = re.compile(r'\b(?:engine|dp_rank)="(\d{1,9})"')
"""Names a data parallel rank."""
_BLOCKS: Final = re.compile(r'\bnum_gpu_blocks="(\d{1,12})"')
_BLOCK_SIZE: Final = re.compile(r'\bblock_size="(\d{1,12})"')


@dataclass(frozen=True, slots=True)
class ReportedLoad:
    """Load that a backend reports.

    `epoch` is when its process began (unix seconds), `kv_tokens` and `places` its capacity in
    tokens and requests, `kv_used` the share of its cache in use (0 to 1; of ranks the mean).
    """

    waiting: int | None = None
    running: int | None = None
    epoch: int | None = None
    kv_tokens: int | None = None
    places: int | None = None
    kv_used: float | None = None
    generated: int | None = None
    tokens_per_s: float | None = None

    def since(self, before: ReportedLoad, seconds: float) -> ReportedLoad:
        """Return it with `tokens_per_s` of an engine that only counts tokens."""
        if self.generated is None or before.generated is None or seconds <= 0:
            return self
        more = self.generated - before.generated
        # Less than before: it has begun anew.
        return replace(self, tokens_per_s=more / seconds) if more >= 0 else self


NO_LOAD: Final = ReportedLoad()


def from_metrics(text: str, rank: int | None = None) -> ReportedLoad:
    """Parse Prometheus' text. Never raises.

    Engines behind one server are added up. With a `rank`, values that are not by rank are unknown.
    """
    sums: dict[str, float] = {}
    shares: list[float] = []
    blocks: int | None = None
    for name, labels, value in _samples(text):
        if rank is not None and name != _BEGAN and _rank_of(labels) != rank:
            continue
        if name == _CACHE:
            blocks = (blocks or 0) + _tokens_of_cache(labels)
        elif name == _BEGAN:
            sums[name] = max(sums.get(name, 0.0), value)
        elif name in _KV_USED:
            shares.append(value)
        else:
            sums[name] = sums.get(name, 0.0) + value
    capacity = _plausible(blocks or sums.get(_CAPACITY))
    return ReportedLoad(
        waiting=_first(sums, _WAITING),
        running=_first(sums, _RUNNING),
        epoch=_plausible(sums.get(_BEGAN), EPOCH_END),
        kv_tokens=capacity or None,
        kv_used=_mean_share(shares),
        generated=_plausible(sums.get(_GENERATED)),
        tokens_per_s=_plausible(sums.get(_SPEED)),
    )


def from_loads(body: bytes, rank: int | None = None) -> ReportedLoad:
    """Parse the JSON of SGLang's `/v1/loads`. Never raises."""
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
    speeds = _numbers(rows, "gen_throughput")
    return ReportedLoad(
        waiting=_sum_column(rows, "num_waiting_reqs"),
        running=_sum_column(rows, "num_running_reqs"),
        kv_tokens=_sum_column(rows, "max_total_num_tokens") or None,
        places=_sum_column(rows, "max_running_requests") or None,
        kv_used=_mean_share(_numbers(rows, "token_usage")),
        tokens_per_s=_plausible(sum(speeds)) if speeds else None,
    )


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    for sample in _SAMPLE.finditer(text):
        try:
            yield sample["name"], sample["labels"] or "", float(sample["value"])
        except ValueError:
            continue


def _rank_of(labels: str) -> int | None:
    match = _RANK.search(labels)
    return int(match[1]) if match else None


def _tokens_of_cache(labels: str) -> int:
    blocks, size = _BLOCKS.search(labels), _BLOCK_SIZE.search(labels)
    return int(blocks[1]) * int(size[1]) if blocks and size else 0


def _first(sums: Mapping[str, float], names: frozenset[str]) -> int | None:
    return next((_plausible(sums[name]) for name in sorted(names) if name in sums), None)


def _plausible(value: float | None, end: int = 2**40) -> int | None:
    # None if it is not a plausible number of requests, tokens or seconds.
    return int(value) if value is not None and 0 <= value < end else None


def _mean_share(shares: Sequence[float]) -> float | None:
    if not shares or not all(0 <= one <= 1 for one in shares):
        return None
    return sum(shares) / len(shares)


def _numbers(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [row[name] for row in rows if type(row.get(name)) in {int, float}]


def _sum_column(rows: list[dict[str, Any]], name: str) -> int | None:
    values = [row[name] for row in rows if type(row.get(name)) is int and row[name] >= 0]
    return _plausible(sum(values)) if values else None
