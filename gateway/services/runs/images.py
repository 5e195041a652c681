"""Images that a request names by URL, fetched for models that see, under the rules of tools.

A server of a model is never given such a URL: it stands inside of the operator's network.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urldefrag, urljoin

from gateway.models.format import IMAGE_QUESTION
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS, BodyTooLong, EncodedBody, normalised

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.telemetry.metrics import Metrics
    from gateway.tools.egress.network_policy import NetworkPolicy
    from gateway.tools.egress.transport import EgressClient

TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")


@dataclass(frozen=True, slots=True)
class ImageVisits:
    """Bounds of fetching one image, and how many are fetched at the same time. Who waits for one
    of these places does so within `timeout_s`.
    """

    timeout_s: float = 10.0
    redirects_max: int = 3
    visits_max: int = 16


class _NoImage(Exception):
    """Why there is no image to show; the message is for the caller."""


class ImageFetcher:
    """Fetches images for all tenants of a process. `client` bounds how long they are."""

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

    async def answers(self, questions: Sequence[bytes]) -> dict[bytes, str]:
        """A data URL for each of these questions, or why there is none."""
        async with asyncio.TaskGroup() as group:
            fetching = {one: group.create_task(self._answer(one)) for one in questions}
        return {question: task.result() for question, task in fetching.items()}

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _answer(self, question: bytes) -> str:
        url = question.removeprefix(IMAGE_QUESTION).decode()
        try:
            async with asyncio.timeout(self._visits.timeout_s), self._places:
                return await self._fetch(urldefrag(url).url)
        except EgressRefused as error:
            self._metrics.egress_refused(purpose="image", reason=error.reason)
            return f"its URL is not fetched: {error}"
        except TimeoutError:
            return "it did not come in time"
        except (_NoImage, BodyTooLong, EncodedBody) as error:
            return str(error)
        except (*EGRESS_ERRORS, ValueError) as error:
            return f"its server could not be read ({type(error).__name__})"

    async def _fetch(self, url: str) -> str:
        self._policy.origin(url)
        url = normalised(url)
        origin = self._policy.origin(url)
        for _ in range(self._visits.redirects_max + 1):
            found = await self._get(url)
            if isinstance(found, tuple):
                kind, content = found
                return f"data:{kind};base64,{b64encode(content).decode()}"
            url = normalised(urljoin(url, found))
            origin = self._policy.redirected(origin, url)
        raise _NoImage("its URL redirects too often")

    async def _get(self, url: str) -> tuple[str, bytes] | str:
        """Type and content, or where it has moved."""
        headers = {"user-agent": self._user_agent, "accept": ", ".join(TYPES)}
        async with self._client.stream("GET", url, headers=headers) as answer:
            if answer.is_redirect and (where := answer.headers.get("location")):
                return str(where)
            if not answer.is_success:
                raise _NoImage(f"its server answered {answer.status_code}")
            kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in TYPES:
                raise _NoImage(f"what its URL leads to is none of {', '.join(TYPES)}")
            return kind, await answer.aread()
