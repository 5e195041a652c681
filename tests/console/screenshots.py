"""Pictures of every page of the console: light, dark and as wide as a telephone.

Run by `make screenshots`; the argument is the folder that they go to.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.store.migration.migrate import upgrade
from tests.console.chromium import DESKTOP, PHONE, chromium, sign_in, visit
from tests.console.showcase import showcase
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.console.showcase import Showcase

VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "390px": {"viewport": PHONE, "color_scheme": "light"},
}
SETTLE_MS: Final = 2_500
"""For pages that are filled by a stream."""


async def picture(shown: Showcase, browser: Browser, folder: Path) -> None:
    for variant, options in VARIANTS.items():
        running = [
            asyncio.create_task(shown.generate(input=f"Slowly {number}", background=not number % 3))
            for number in range(14)
        ]
        async with visit(browser, **options) as visited:
            await visited.page.goto(f"{shown.admin_url}/console/login")
            await visited.page.screenshot(path=folder / f"login-{variant}.png")
            await sign_in(visited, await shown.login_url())
            for name, path in shown.paths().items():
                await visited.page.goto(f"{shown.admin_url}/console{path}")
                await visited.page.wait_for_timeout(
                    SETTLE_MS if name in {"now", "queue", "backends"} else 300
                )
                await visited.page.screenshot(path=folder / f"{name}-{variant}.png", full_page=True)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def main(folder: Path) -> None:
    with reachable_folder() as data, embedded(data / "data") as server:
        postgres = PostgresServer(server.url)
        url = postgres.database_url(await postgres.create())
        await upgrade(url)
        async with showcase(url) as shown, chromium() as browser:
            await picture(shown, browser, folder)


if __name__ == "__main__":
    chosen = Path(sys.argv[1])
    chosen.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(chosen))
