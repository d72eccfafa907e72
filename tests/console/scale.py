"""Measures the console with 10,000 topics and a million messages: `python -m tests.console.scale`.

Each page is opened in Chromium by its address within the page, until what it shows is complete.
Fails if one takes longer, or leaves more memory in use, than decision 0047 promises.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import CDPSession, Page, sync_playwright

from tests.http.calls import TRANSACTIONS, Topic, begin
from tests.http.client import Client, ok
from tests.http.forking import forking
from tests.http.process import serve

TOPICS_COUNT = 10_000
MESSAGES_COUNT = 1_000_000
BATCH_COUNT = 10_000
OPEN_COUNT = 200
ANSWER_MS_MAX = 300
HEAP_BYTES_MAX = 50_000_000
ROUNDS = 5

# Each page, and a script that is true once all of it is there.
PAGES = {
    "overview": "document.querySelectorAll('main table tbody tr').length === 5",
    "topics": "document.querySelectorAll('main tbody tr').length === 50",
    "topics?contains=t09": "document.querySelectorAll('main tbody tr').length === 50",
    "topic/many/t00000": "document.querySelectorAll('main table').length === 4",
    "messages/many/t00000": "document.querySelectorAll('main td.wide').length === 50",
    "messages/many/t00000?from=earliest": (
        "document.querySelectorAll('main td.wide').length === 50"
    ),
    "transactions": "document.querySelectorAll('main table').length === 2",
    "snapshots": "document.querySelectorAll('main table').length === 2",
    "system": "document.querySelectorAll('main table').length === 2 "
    "&& document.querySelector('main select') !== null",
}
# The page comes from another one, so that all of it is drawn anew.
OPEN = """async (name) => {
  const began = performance.now();
  location.hash = `#/${name}`;
  await new Promise((resolve) => { addEventListener("hashchange", resolve, { once: true }); });
  while (!(%s)) await new Promise((resolve) => { requestAnimationFrame(resolve); });
  return performance.now() - began;
}"""


def fill(client: Client) -> None:
    """Topics, messages of which most are in one topic, and open transactions."""
    topics = [Topic(client, "many", f"t{number:05}") for number in range(TOPICS_COUNT)]
    for each in topics:
        ok(each.create())
    for each in topics[1::10]:
        ok(each.publish("one"))
    body = ['{"order": {"id": 1}, "total": 12.5}'] * BATCH_COUNT
    for _ in range(MESSAGES_COUNT // BATCH_COUNT):
        ok(topics[0].publish(*body))
    for number in range(OPEN_COUNT):
        opened = begin(client, client=f"billing-{number}", timeout=3600)
        ok(topics[number + 1].publish("open", tx=opened.id))
    ok(client.post(f"{TRANSACTIONS}/snapshot"))


def heap_bytes(session: CDPSession) -> int:
    """What is in use after a garbage collection."""
    session.send("HeapProfiler.collectGarbage")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return int(next(each["value"] for each in metrics if each["name"] == "JSHeapUsedSize"))


def measure(page: Page, session: CDPSession) -> bool:
    """Prints a line for each page; whether all are within the bounds."""
    are_good = True
    for name, is_complete in PAGES.items():
        times_ms = []
        for _ in range(ROUNDS):
            page.evaluate(OPEN % "document.querySelector('main input')", "messages")
            times_ms.append(page.evaluate(OPEN % is_complete, name))
        used = heap_bytes(session)
        is_good = max(times_ms) < ANSWER_MS_MAX and used < HEAP_BYTES_MAX
        are_good &= is_good
        median_ms = statistics.median(times_ms)
        print(
            f"{'ok ' if is_good else 'BAD'} {name:36} median {median_ms:4.0f} ms, "
            f"at most {max(times_ms):4.0f} ms, heap {used / 1e6:5.1f} MB",
            flush=True,
        )
    return are_good


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="console-scale-"))
    try:
        with forking(), serve(home, "messaging.max_block=3600") as server:
            fill(Client(server.port, is_checked=False))
            with sync_playwright() as playwright:
                chromium = playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), args=["--no-sandbox"]
                )
                page = chromium.new_page()
                session = page.context.new_cdp_session(page)
                session.send("Performance.enable")
                page.goto(f"{server.url}/console")
                are_good = measure(page, session)
                chromium.close()
    finally:
        shutil.rmtree(home)
    return 0 if are_good else 1


if __name__ == "__main__":
    sys.exit(main())
