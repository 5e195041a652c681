"""A replica is killed, and an operator watches in a browser how another one goes on."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from playwright.async_api import expect

from tests.console.chromium import NEEDS_CHROMIUM, sign_in, visit
from tests.fakes.gateway import PEPPER, gateway_settings, new_key
from tests.fakes.http_client import http_client
from tests.fakes.processes import (
    Child,
    GatewayProcess,
    gateway_process,
    reserved_port,
    simulator_process,
    stopped,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.async_api import Browser

pytestmark = NEEDS_CHROMIUM
MODEL: Final = "gpt-oss-20b"
INTERRUPTED: Final = "waiting until another replica went on"
LEASE_S: Final = 1.0
"""Seconds a replica may be silent until another goes on for it."""


@dataclass(frozen=True)
class Pair:
    """Two replicas of one database, one of which is killed. The console is that of the other."""

    doomed: GatewayProcess
    survivor: GatewayProcess
    console: str


@contextmanager
def pair(folder: Path, database_url: str) -> Iterator[Pair]:
    with ExitStack() as stack:
        backend, *ports = (stack.enter_context(reserved_port()) for _ in range(3))
        stack.enter_context(simulator_process(backend, tokens_per_s=15))
        doomed, survivor = (
            stack.enter_context(
                gateway_process(
                    own,
                    database_url,
                    [f"http://127.0.0.1:{backend}"],
                    background={"lease_s": LEASE_S},
                    admin={"port": port},
                    console={"enabled": True},
                )
            )
            for own, port in ((_folder(folder, port), port) for port in ports)
        )
        assert doomed.url != survivor.url, "both are ready"
        yield Pair(doomed, survivor, f"http://127.0.0.1:{ports[1]}")


def _folder(folder: Path, port: int) -> Path:
    own = folder / str(port)
    own.mkdir()
    return own


def login_link(database_url: str, console: str) -> str:
    """What the command prints."""
    secrets = {"DATABASE_URL": database_url, "GATEWAY_AUTH__KEY_PEPPER": PEPPER}
    with stopped(Child(["console", "login-link", "--url", console], secrets)) as child:
        child.until("token=")
        return next(line for line in child.output.splitlines() if "token=" in line)


async def test_tokens_go_on_behind_a_takeover(
    browser: Browser, database_url: str, tmp_path: Path
) -> None:
    policy: Any = {"operator_content_access": "always"}
    key = await new_key(gateway_settings(database_url, []), "acme", policy)
    headers = {"authorization": f"Bearer {key}"}
    with pair(tmp_path, database_url) as replicas:
        async with (
            visit(browser) as visited,
            http_client(replicas.doomed.url, headers=headers, timeout=60) as client,
        ):
            page = visited.page
            await sign_in(visited, login_link(database_url, replicas.console))
            body = {"model": MODEL, "input": "Tell me. [[sim tokens=4000]]", "background": True}
            made = (await client.post("/v1/responses", json=body)).json()
            row = page.locator(f"#{made['id']}")
            await row.wait_for()
            first = await row.locator("td").last.locator("code").get_attribute("title") or "none"
            await row.get_by_role("link").click()
            await page.get_by_role("link", name="Tokens").click()
            await page.get_by_label("Reason").fill("Ticket 4711: will it go on?")
            await page.get_by_role("button", name="Reveal").click()
            await page.locator("#tokens i").nth(20).wait_for()

            replicas.doomed.child.kill()
            seam = page.locator("#tokens .seam")
            await seam.wait_for(state="attached")
            # Whoever generates it now writes what is behind the seam.
            await page.locator("#tokens .seam ~ .run i").nth(30).wait_for()
            await page.locator(".totals li", has_text=INTERRUPTED).wait_for()
            await page.get_by_text("All spans as a table").click()
            lanes = page.locator("tr", has=page.get_by_role("cell", name="Replicas"))
            await expect(lanes).to_have_count(2)
            before, after = await lanes.all_inner_texts()
            assert first in before
            assert before.endswith("taken over")
            assert "replica_" in after
            assert first not in after
            # While the page is renewed the table stays open, and the button focused.
            cancel = page.get_by_role("button", name="Cancel the response")
            await cancel.focus()
            duration = page.locator(".fact", has_text="Duration").locator("dd")
            await expect(duration).not_to_have_text(await duration.inner_text())
            await expect(lanes.first).to_be_visible()
            await page.keyboard.press("Enter")
            await page.get_by_text("cancelled", exact=True).first.wait_for()
            await expect(page.locator(".totals")).to_contain_text(INTERRUPTED)
            await visited.check()
