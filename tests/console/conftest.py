"""A real server, and Debian's Chromium with a page of the console."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.http.process import ServerProcess, serve
from tests.programs import require


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = require("chromium")
    with sync_playwright() as playwright:
        # Without its sandbox it also runs as root.
        expect.set_options(timeout=60_000)
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with serve(tmp_path / "server") as running:
        yield running


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that no script has broken, that violated no policy, and loaded nothing from
    elsewhere."""
    found: list[str] = []

    def note(message: ConsoleMessage) -> None:
        # Chromium itself reports each reply from 400 on.
        if message.type == "error" and "Failed to load resource" not in message.text:
            found.append(message.text)

    context = browser.new_context(viewport={"width": 1200, "height": 900}, locale="en-GB")
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    hosts: set[str] = set()
    opened.on("console", note)
    opened.on("pageerror", lambda error: found.append(str(error)))
    opened.on("dialog", lambda dialog: (found.append(dialog.message), dialog.dismiss()))
    opened.on("request", lambda request: hosts.add(request.url.split("/")[2].split(":")[0]))
    yield opened
    context.close()
    assert found == []
    assert hosts <= {"127.0.0.1"}
