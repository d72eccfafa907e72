"""Makes the screenshots of docs/console.md: `python -m tests.console.screenshots`."""

import json
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.http.calls import TRANSACTIONS, Topic, begin, entry
from tests.http.client import Client, ok
from tests.http.forking import forking
from tests.http.process import ServerProcess, serve

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SIZE = {"width": 1100, "height": 640}


def fill(client: Client) -> str:
    """A small shop; returns the transaction that holds readers back."""
    orders = Topic(client, "shop", "orders")
    for name in ("orders", "invoices", "parcels", "returns"):
        ok(Topic(client, "shop", name).create({"partitions": 1}))
    for number in range(40):
        body = {"id": 4700 + number, "total": 12.5 * number, "country": "de"}
        message = {"payload": json.dumps(body), "key": f"c{number % 7}", "tags": ["eu"]}
        ok(orders.publish(message))
        ok(
            client.post(
                f"{TRANSACTIONS}/run", {"publish": [entry(Topic(client, "shop", "invoices"), "x")]}
            )
        )
    aborted = begin(client, client="returns-1")
    ok(orders.publish('{"id": 4740}', tx=aborted.id))
    ok(aborted.abort())
    ok(client.post(f"{TRANSACTIONS}/snapshot"))
    opened = begin(client, client="billing-7")
    ok(orders.publish('{"id": 4741, "total": 99.0, "country": "fr"}', tx=opened.id))
    ok(opened.can_commit("order-4741"))
    begin(client, client="report-2", type="long")
    ok(orders.publish('{"id": 4742, "total": 17.0, "country": "de"}'))
    ok(client.post(f"{TRANSACTIONS}/snapshot"))
    return opened.id


def take(page: Page, server: ServerProcess, name: str, address: str, *, dark: bool = False) -> None:
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.goto("about:blank")
    page.goto(f"{server.url}/console#/{address}")
    page.wait_for_selector("main table")
    if name == "messages":
        page.get_by_role("button", name="Details of the message").last.click()
        page.get_by_role("button", name="Why is it visible or not?").click()
        page.wait_for_selector("strong")
    page.wait_for_timeout(2_500 if name == "overview" else 300)
    if name == "messages":
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.screenshot(path=IMAGES / f"console-{name}.png")


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="console-"))
    IMAGES.mkdir(exist_ok=True)
    try:
        with forking(), serve(home) as server, sync_playwright() as playwright:
            opened = fill(server.client())
            chromium = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            page = chromium.new_page(viewport=SIZE)
            take(page, server, "overview", "overview")
            take(page, server, "topics", "topics")
            take(page, server, "messages", "messages/shop/orders")
            take(page, server, "transactions", f"transactions?show={opened}", dark=True)
            take(page, server, "snapshots", "snapshots")
            take(page, server, "system", "system")
            chromium.close()
    finally:
        shutil.rmtree(home)
    print(f"the screenshots are in {IMAGES}")


if __name__ == "__main__":
    main()
