"""Work that makes prompts, also where servers have to render them, or images to be fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

from gateway.errors import ContextLengthExceeded
from gateway.models.format import IMAGE_QUESTION, Unrendered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.models.format import Rendering
    from gateway.services.executor import ThreadExecutor
    from gateway.services.models import Model
    from gateway.tenancy import TenantId

T = TypeVar("T")
Given = TypeVar("Given", bound="Renderable")

RENDERINGS_MAX: Final = 8
"""How often servers are asked to render for one request: to learn the template, for the prompt, for
a summary, and again with fewer and fewer turns."""


class Tokenizers(Protocol):
    """Client that has servers render conversations (`upstreams.tokenization`)."""

    async def render(self, model: str, questions: Sequence[bytes]) -> Mapping[bytes, Rendering]:
        """Return the answer to each question (`Unrendered`). Raises `NoUpstreamAvailable`."""


class Images(Protocol):
    """Fetcher of images (`services.runs.images`)."""

    async def answers(
        self, questions: Sequence[bytes], tenant_id: TenantId
    ) -> tuple[Mapping[bytes, str], object]:
        """Return a data URL for each `IMAGE_QUESTION`, or the reason why there is none.

        The second value counts the bytes of the images as long as it is referenced.
        """


class Renderable(Protocol):
    """Input of work that makes prompts."""

    @property
    def model(self) -> Model:
        """Return the model that the prompt is for."""

    @property
    def tenant_id(self) -> TenantId:
        """Return the tenant of the request."""

    def with_renderings(self, answers: Mapping[bytes, Rendering], hold: object = None) -> Self:
        """Return a copy with these answers of servers added. `hold` counts the bytes of their
        images.
        """


class PromptExecutor:
    """Executor of work that makes prompts: it keeps the event loop free, and fetches renderings.

    The work itself does no I/O. It raises `Unrendered` for what it lacks, and runs again with the
    answers.
    """

    def __init__(
        self, executor: ThreadExecutor, tokenizers: Tokenizers, images: Images | None = None
    ) -> None:
        """Fetch images with `images`; None if no model sees any."""
        self._executor = executor
        self._tokenizers = tokenizers
        self._images = images

    async def run(self, work: Callable[[Given], T], given: Given, *, size_bytes: int) -> T:
        """Run `work` as `ThreadExecutor.run` does, with renderings and images from servers.

        Raises what `ThreadExecutor.run` raises, and `NoUpstreamAvailable` if no server of the model
        renders.
        """
        for _ in range(RENDERINGS_MAX):
            try:
                return await self._executor.run(work, given, size_bytes=size_bytes)
            except Unrendered as lacking:
                questions = lacking.questions
            images = [one for one in questions if one.startswith(IMAGE_QUESTION)]
            if images and self._images is not None:
                fetched, hold = await self._images.answers(images, given.tenant_id)
                given = given.with_renderings(fetched, hold)
                size_bytes += sum(map(len, fetched.values()))
            else:
                answers = await self._tokenizers.render(given.model.id, questions)
                given = given.with_renderings(answers)
        raise ContextLengthExceeded(
            "Your input exceeds the context window of this model, and did not come to fit when its "
            "older turns were left out one after the other. Please send less of it."
        )
