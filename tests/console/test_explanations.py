"""Ten situations in which a message is not visible: the console names the reason of each."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.console.test_pages import open_page
from tests.http.calls import TRANSACTIONS, Topic, begin
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess, serve
from tests.http.test_damaged_records import damage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# The topic and the id to ask for, and the transaction of the reader.
Asked = tuple[Topic, str, str]


def published(topic: Topic, payload: str, **query: object) -> str:
    return str(ok(topic.publish(payload, **query)).header("Tuff-First-Id"))


def created(client: Client, namespace: str = "shop", name: str = "orders") -> Topic:
    topic = Topic(client, namespace, name)
    ok(topic.create())
    return topic


def in_progress(client: Client) -> Asked:
    topic = created(client)
    return topic, published(topic, "open", tx=begin(client).id), ""


def behind_undecided(client: Client) -> Asked:
    topic, _, _ = in_progress(client)
    return topic, published(topic, "later"), ""


def aborted(client: Client) -> Asked:
    topic, opened = created(client), begin(client)
    message_id = published(topic, "aborted", tx=opened.id)
    ok(opened.abort())
    return topic, message_id, ""


def expired(client: Client) -> Asked:
    topic = created(client)
    message_id = published(topic, "brief", ttl=1)
    until(lambda: topic.read() == [], what="the message to expire")
    return topic, message_id, ""


def after_snapshot(client: Client) -> Asked:
    topic, reader, writer = created(client), begin(client), begin(client)
    message_id = published(topic, "new", tx=writer.id)
    ok(writer.commit())
    return topic, message_id, reader.id


def delayed(client: Client) -> Asked:
    topic = created(client)
    waiting = ok(topic.publish("later", delay=600)).header("Tuff-Delayed-First")
    return topic, str(waiting), ""


def topic_recreated(client: Client) -> Asked:
    topic = created(client)
    message_id = published(topic, "old")
    ok(topic.delete())
    ok(topic.create())
    return topic, message_id, ""


def truncated(client: Client) -> Asked:
    topic = created(client)
    message_id, kept = published(topic, "gone"), published(topic, "kept")
    ok(topic.truncate(kept))
    return topic, message_id, ""


def other_namespace(client: Client) -> Asked:
    topic, other = created(client), created(client, "shop-test")
    return topic, published(other, "strayed"), ""


def not_written_yet(client: Client) -> Asked:
    topic = created(client)
    published(topic, "newest")
    return topic, "7" + "f" * 39, ""


def ask(page: Page, server: ServerProcess, topic: Topic, message_id: str, tx: str) -> None:
    open_page(page, server, "messages")
    page.get_by_label("Topic of the message").fill(f"{topic.namespace}:{topic.name}")
    page.get_by_label("Id of the message").fill(message_id)
    page.get_by_label("Transaction of the reader").fill(tx)
    page.get_by_role("button", name="Explain").click()


@pytest.mark.parametrize(
    "situation",
    [in_progress, behind_undecided, aborted, expired, after_snapshot, delayed, topic_recreated,
     truncated, other_namespace, not_written_yet],
    ids=lambda each: each.__name__,
)  # fmt: skip
def test_the_console_names_the_reason(
    page: Page, server: ServerProcess, situation: Callable[[Client], Asked]
) -> None:
    ask(page, server, *situation(server.client()))

    expect(page.locator("main code").first).to_have_text(situation.__name__)
    expect(page.locator("main strong").first).to_have_text("hidden")


def test_the_console_names_a_corrupt_record(page: Page, tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        topic = created(server.client())
        message_id = published(topic, "to be damaged")
    assert damage(server.data / "messages", b"to be damaged") == 1
    with serve(tmp_path) as again:
        ask(page, again, topic, message_id, "")

        expect(page.locator("main code").first).to_have_text("damaged")


def test_a_snapshot_file_says_whether_its_reader_sees_a_message(
    page: Page, server: ServerProcess
) -> None:
    client = server.client()
    topic, opened = created(client), begin(client)
    message_id = published(topic, "open then", tx=opened.id)
    ok(client.post(f"{TRANSACTIONS}/snapshot"))
    ok(opened.commit())
    open_page(page, server, "snapshots")

    page.get_by_label("Topic").fill("shop:orders")
    page.get_by_label("Message id").fill(message_id)
    page.get_by_role("button", name="Is it visible?").click()

    expect(page.locator("main strong")).to_have_text("hidden")
    expect(page.locator("main code").first).to_have_text("after_snapshot")
