"""Chromium of the machine, driven by Playwright, which brings its driver but no browser."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from playwright.async_api import async_playwright

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Page

PROGRAM: Final = Path("/usr/bin/chromium")
FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
NEEDS_CHROMIUM: Final = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM.exists(), reason=f"there is no {PROGRAM}"),
]
DESKTOP: Final = {"width": 1280, "height": 860}
PHONE: Final = {"width": 390, "height": 844}
_WATCH: Final = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=str(PROGRAM), args=list(FLAGS), env={"HOME": "/tmp"}
        )
        try:
            yield browser
        finally:
            await browser.close()


class Visit:
    """A tab in a context of its own; `complaints` are errors of the console and of scripts."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._on_message)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_message(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    async def violations(self) -> list[str]:
        found: list[str] = await self.page.evaluate("window.violations")
        return found

    async def check(self) -> None:
        """Fail where a page broke its policy, or a script complained."""
        assert await self.violations() == []
        assert self.complaints == []


@asynccontextmanager
async def visit(browser: Browser, **options: Any) -> AsyncIterator[Visit]:
    context = await browser.new_context(**{"viewport": DESKTOP, **options})
    await context.add_init_script(_WATCH)
    try:
        yield Visit(await context.new_page())
    finally:
        await context.close()


async def sign_in(visited: Visit, url: str) -> None:
    await visited.page.goto(url)
    await visited.page.get_by_role("button", name="Sign in").click()
    await visited.page.wait_for_selector("nav")
