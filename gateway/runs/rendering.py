"""Render on the event loop when it is quick, in a thread when it is not."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.generation import Prompt
    from gateway.harmony.rendering import Renderer, RenderOptions
    from gateway.protocol.context import ContextItem


class Rendering:
    """The renderer, kept from holding up the loop.

    Tokenising frees the GIL, so a thread is enough: a megabyte of text costs the other requests
    nothing they notice.
    """

    def __init__(self, renderer: Renderer, *, inline_chars_max: int, threads_max: int) -> None:
        self._renderer = renderer
        self._inline_chars_max = inline_chars_max
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="render")

    async def render(self, items: Sequence[ContextItem], options: RenderOptions) -> Prompt:
        """`Renderer.render`, away from the event loop when there is much text to tokenise."""
        chars = len(options.instructions or "")
        chars += sum(len(item.json) for item in items if item.ids is None)
        if chars <= self._inline_chars_max:
            return self._renderer.render(items, options)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._renderer.render, items, options)

    def close(self) -> None:
        """End the threads; waits for what they are at."""
        self._threads.shutdown(cancel_futures=True)
