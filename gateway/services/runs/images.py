"""Images named by URL, fetched for models that see.

A model's server must not fetch them itself: it stands inside the operator's network. A request of a
hundred bytes can name a hundred MiB of images, in memory until its run ends, so the bytes held are
bounded.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin
from weakref import WeakValueDictionary

from gateway.models.chat.image_gallery import LONG_TOGETHER, SIGNATURES
from gateway.models.format import IMAGE_NO_ROOM, IMAGE_QUESTION
from gateway.settings.sections import TENANT_IMAGE_SHARE
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS, BodyTooLong, EncodedBody, normalised

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.telemetry.metrics import Metrics
    from gateway.tenancy import TenantId
    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressClient

REDIRECTS_MAX: Final = 3
_NO_TURN: Final = (
    f"{IMAGE_NO_ROOM}As many images as may be are being fetched for your requests, or for all. Try "
    "again in a moment, or send the image as a data URL."
)


@dataclass(frozen=True, slots=True)
class ImageVisits:
    """Bounds of fetching images. `timeout_s` includes the wait for a turn; `context_bytes_max` is
    for one context, `held_bytes_max` for all images in memory.
    """

    bytes_max: int = 8 * 1024 * 1024
    timeout_s: float = 10.0
    visits_max: int = 16
    context_bytes_max: int = 32 * 1024 * 1024
    held_bytes_max: int = 512 * 1024 * 1024
    tenant_share: float = TENANT_IMAGE_SHARE


class _NoImage(Exception):
    """Lack of an image; the message is for the caller."""


class _Coming:
    """Images of one context: if they are too long together, the last that has arrived is
    abandoned.
    """

    def __init__(self, count: int, hold: ImageHold, bytes_max: int) -> None:
        self._sizes = [0] * count
        self._hold = hold
        self._bytes_max = bytes_max
        self._abandoned: set[int] = set()

    def check(self, at: int) -> None:
        if at in self._abandoned or sum(self._sizes[:at]) >= self._bytes_max:
            raise self._too_long

    def add(self, at: int, size: int) -> None:
        self.check(at)
        while sum(self._sizes) + size > self._bytes_max:
            last = max(i for i, come in enumerate(self._sizes) if come or i == at)
            self._abandoned.add(last)
            self.drop(last)
            self.check(at)
        self._hold.add(size)
        self._sizes[at] += size

    def drop(self, at: int) -> None:
        self._hold.give_back(self._sizes[at])
        self._sizes[at] = 0

    def final(self, answers: Sequence[str]) -> list[str]:
        why = str(self._too_long)
        return [why if at in self._abandoned else one for at, one in enumerate(answers)]

    @property
    def _too_long(self) -> _NoImage:
        return _NoImage(LONG_TOGETHER.format(self._bytes_max))


class ImageFetcher:
    """Fetcher of images; `client` ends a body after `bytes_max`."""

    def __init__(
        self,
        client: EgressClient,
        policy: NetworkPolicy,
        visits: ImageVisits,
        *,
        user_agent: str,
        metrics: Metrics,
    ) -> None:
        self._client = client
        self._policy = policy
        self._visits = visits
        self._user_agent = user_agent
        self._metrics = metrics
        self._places = asyncio.Semaphore(visits.visits_max)
        self._places_of: WeakValueDictionary[TenantId, asyncio.Semaphore] = WeakValueDictionary()
        self.budget = ImageBudget(
            bytes_max=visits.held_bytes_max,
            tenant_bytes_max=int(visits.held_bytes_max * visits.tenant_share),
        )
        metrics.image_bytes_held.append(lambda: self.budget.held_bytes)

    async def answers(
        self, questions: Sequence[bytes], tenant_id: TenantId
    ) -> tuple[Mapping[bytes, str], ImageHold]:
        """Return a data URL for each question, or the reason why there is none.

        The reason begins with `IMAGE_NO_ROOM` if the image could be had at another time. The bytes
        count as long as the hold is referenced.
        """
        hold = ImageHold(self.budget, tenant_id)
        coming = _Coming(len(questions), hold, self._visits.context_bytes_max)
        places = self._places_of.get(tenant_id)
        if places is None:
            visits = self._visits
            places = asyncio.Semaphore(max(1, int(visits.visits_max * visits.tenant_share)))
            self._places_of[tenant_id] = places
        async with asyncio.TaskGroup() as group:
            fetching = [
                group.create_task(self._answer(question, at, coming, places))
                for at, question in enumerate(questions)
            ]
        answers = coming.final([task.result() for task in fetching])
        return dict(zip(questions, answers, strict=True)), hold

    async def close(self) -> None:
        await self._client.aclose()

    async def _answer(
        self, question: bytes, at: int, coming: _Coming, places: asyncio.Semaphore
    ) -> str:
        url = question.removeprefix(IMAGE_QUESTION).decode().partition("#")[0]
        is_turn = False
        try:
            async with asyncio.timeout(self._visits.timeout_s), places, self._places:
                is_turn = True
                coming.check(at)
                return await self._fetch(url, at, coming)
        except EgressRefused as error:
            self._metrics.egress_refused(purpose="image", reason=error.reason)
            why = f"its URL is not fetched: {error}"
        except TimeoutError:
            why = "it did not come in time" if is_turn else _NO_TURN
        except NoRoom as error:
            why = f"{IMAGE_NO_ROOM}{error}"
        except BodyTooLong:
            why = f"it is longer than {self._visits.bytes_max} bytes"
        except (_NoImage, EncodedBody) as error:
            why = str(error)
        except EGRESS_ERRORS as error:
            why = f"its server could not be read ({type(error).__name__})"
        coming.drop(at)
        return why

    async def _fetch(self, url: str, at: int, coming: _Coming) -> str:
        self._policy.origin(url)
        url = normalised(url)
        origin = self._policy.origin(url)
        for _ in range(REDIRECTS_MAX + 1):
            answer = await self._get(url, at, coming)
            if isinstance(answer, tuple):
                kind, content = answer
                return f"data:{kind};base64,{b64encode(content).decode()}"
            url = normalised(urljoin(url, answer))
            origin = self._policy.redirected(origin, url)
        raise _NoImage("its URL redirects too often")

    async def _get(self, url: str, at: int, coming: _Coming) -> tuple[str, bytes] | str:
        # Returns type and content, or the URL of a redirect.
        headers = {"user-agent": self._user_agent, "accept": ", ".join(SIGNATURES)}
        async with self._client.stream("GET", url, headers=headers) as answer:
            if answer.is_redirect and (where := answer.headers.get("location")):
                return str(where)
            if not answer.is_success:
                raise _NoImage(f"its server answered {answer.status_code}")
            kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in SIGNATURES:
                raise _NoImage(f"what its URL leads to is none of {', '.join(SIGNATURES)}")
            parts = []
            async for part in answer.aiter_bytes():
                coming.add(at, len(part))
                parts.append(part)
            return kind, b"".join(parts)


class NoRoom(Exception):
    """Lack of room; the message is for the caller."""


class ImageHold:
    """Counted bytes of one request's images, until nothing references this object: it goes with the
    images from the prompt's input to the run, however that ends.
    """

    __slots__ = ("_budget", "_bytes", "_tenant_id")

    def __init__(self, budget: ImageBudget, tenant_id: TenantId) -> None:
        self._budget = budget
        self._tenant_id = tenant_id
        self._bytes = 0

    def add(self, size: int) -> None:
        self._budget.take(self._tenant_id, size)
        self._bytes += size

    def give_back(self, size: int) -> None:
        self._bytes -= size
        self._budget.let_go(self._tenant_id, size)

    def __del__(self) -> None:
        self._budget.let_go(self._tenant_id, self._bytes)


class ImageBudget:
    """Bounds of image bytes, which any thread may release: whichever drops a hold last."""

    def __init__(self, *, bytes_max: int, tenant_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tenant_bytes_max = tenant_bytes_max
        self._held_bytes = 0
        self._of_tenants: Counter[TenantId] = Counter()
        self._let_go: deque[tuple[TenantId, int]] = deque()
        """Yet to be subtracted: other threads, or the garbage collector in the middle of a sum, may
        only append.
        """

    @property
    def held_bytes(self) -> int:
        while self._let_go:
            tenant_id, size = self._let_go.popleft()
            self._held_bytes -= size
            self._of_tenants[tenant_id] -= size
            if not self._of_tenants[tenant_id]:
                del self._of_tenants[tenant_id]
        return self._held_bytes

    def take(self, tenant_id: TenantId, size: int) -> None:
        if self.held_bytes + size > self._bytes_max:
            raise NoRoom(
                "The server holds as many bytes of images as it can. Try again in a moment, or "
                "send the image as a data URL."
            )
        if self._of_tenants[tenant_id] + size > self._tenant_bytes_max:
            raise NoRoom(
                f"Your requests hold more than {self._tenant_bytes_max} bytes of images together. "
                "Try again when one of them has ended."
            )
        self._held_bytes += size
        self._of_tenants[tenant_id] += size

    def let_go(self, tenant_id: TenantId, size: int) -> None:
        if size:
            self._let_go.append((tenant_id, size))
