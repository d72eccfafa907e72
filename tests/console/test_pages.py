"""The console in a real browser (decision 0047)."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from tests.http.calls import TRANSACTIONS, Topic, begin
from tests.http.client import ok, until
from tests.http.process import ServerProcess, serve
from tests.http.test_damaged_records import damage
from tests.secret_values import hash_of_token, token_of

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
PAGES = ("overview", "topics", "topic/shop/orders", "messages", "messages/shop/orders",
         "messages/shop/orders?view=delayed", "transactions", "snapshots", "system")  # fmt: skip


def open_page(page: Page, server: ServerProcess, name: str) -> None:
    page.goto("about:blank")  # a change of the fragment alone loads nothing
    page.goto(f"{server.url}/console#/{name}")
    expect(page.locator("h1")).to_be_visible()


@pytest.fixture
def orders(server: ServerProcess) -> Topic:
    topic = Topic(server.client(), "shop", "orders")
    ok(topic.create())
    return topic


def filled(topic: Topic) -> str:
    """Messages in all states; returns the transaction that stays open."""
    client = topic.client
    ok(topic.publish({"payload": "short-lived", "ttl": 1}))
    lines = [
        {"payload": json.dumps({"order": {"id": number}}), "tags": ["even"] * (number % 2 == 0)}
        for number in range(8)
    ]
    ok(topic.publish(*lines))
    ok(topic.publish("later", delay=3600))
    aborted, opened = begin(client, client="billing-1"), begin(client, client="billing-2")
    ok(topic.publish("aborted", tx=aborted.id))
    ok(client.post(f"{TRANSACTIONS}/{aborted.id}/abort"))
    ok(topic.publish("in the open transaction", tx=opened.id))
    return opened.id


def test_a_row_has_its_state(page: Page, server: ServerProcess, orders: Topic) -> None:
    filled(orders)
    expired = f"{orders.path}/rows?limit=1"
    until(
        lambda: orders.client.get(expired).json["rows"][0]["state"] == "expired",
        what="the first message to expire",
    )

    open_page(page, server, "messages/shop/orders")

    for text, state in (
        ("expired: readers no longer", "expired"), ('{"order": {"id": 3}}', "committed"),
        ("aborted", "rolled back"), ("in the open transaction", "in progress"),
    ):  # fmt: skip
        row = page.locator("tbody tr", has=page.locator("td.wide", has_text=text))
        expect(row.locator(".state").first).to_have_text(state)
    page.get_by_role("link", name="Delayed").click()
    expect(page.locator("tbody tr", has_text="later").locator(".state")).to_have_text("delayed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(
    page: Page, server: ServerProcess, orders: Topic, scheme: str
) -> None:
    filled(orders)
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its literals
    for name in PAGES:
        open_page(page, server, name)
        page.wait_for_load_state("networkidle")
        for button in page.get_by_role("button", name="details").all()[:2]:
            button.click()

        found = Axe().run(page)

        assert found.violations_count == 0, (name, found.generate_report())
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def test_what_a_hostile_publisher_writes_is_text(
    page: Page, server: ServerProcess, orders: Topic
) -> None:
    ok(orders.publish({"payload": HOSTILE, "key": HOSTILE, "headers": {"note": HOSTILE}}))
    begin(orders.client, client=HOSTILE)

    open_page(page, server, "messages/shop/orders")
    page.get_by_role("button", name="Details of the message").click()

    expect(page.locator("pre")).to_have_text(HOSTILE)
    expect(page.locator("dd").last).to_have_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0
    assert "hacked" not in page.title()


def test_a_corrupt_record_hides_no_other_message(page: Page, tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        topic = Topic(server.client(), "shop", "orders")
        ok(topic.create())
        for payload in ("before", "to be damaged", "behind"):
            ok(topic.publish(payload))
    assert damage(server.data / "messages", b"to be damaged") == 1
    with serve(tmp_path) as again:
        open_page(page, again, "messages/shop/orders")

        expect(page.locator(".state")).to_have_text(["committed", "damaged", "committed"])
        expect(page.locator("td.wide")).to_have_text(["before", "the record is corrupt", "behind"])


def test_a_page_holds_a_bounded_number_of_bytes(
    page: Page, server: ServerProcess, orders: Topic
) -> None:
    for _ in range(4):
        ok(orders.publish("x" * 6_000_000))

    open_page(page, server, "messages/shop/orders")

    expect(page.get_by_role("link", name="Older page")).to_be_visible()
    expect(page.locator("td.wide")).to_have_count(1)


def test_stored_messages_beyond_the_bound_are_not_loaded(
    page: Page, server: ServerProcess, orders: Topic
) -> None:
    opened = begin(orders.client)
    for _ in range(4):
        ok(orders.store("x" * 6_000_000, tx=opened.id))
        ok(orders.publish(tx=opened.id))
    ok(opened.commit())

    open_page(page, server, "messages/shop/orders")

    expect(page.locator("td.wide", has_text="xxx")).to_have_count(2)
    expect(page.locator("td.wide", has_text="not loaded")).to_have_count(2)


def test_a_filter_finds_by_tag_and_by_field(
    page: Page, server: ServerProcess, orders: Topic
) -> None:
    filled(orders)
    open_page(page, server, "messages/shop/orders")

    page.get_by_label("Tags").fill("even")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("td.wide")).to_have_count(4)
    page.get_by_label("JSON field").fill("order.id")
    page.get_by_label("has the value").fill("6")
    page.get_by_role("button", name="Filter").click()

    expect(page.locator("td.wide")).to_have_text(['{"order": {"id": 6}}'])


def test_a_jump_leads_to_an_id_or_a_time(page: Page, server: ServerProcess, orders: Topic) -> None:
    ok(orders.publish("first"))
    second = ok(orders.publish("second")).header("Tuff-First-Id")
    for place in (second, "2100-01-01T00:00:00Z"):
        open_page(page, server, "messages/shop/orders")
        page.get_by_label("Message id, or time").fill(str(place))
        page.get_by_role("button", name="Jump").click()
        expect(page.locator("td.wide", has_text="first")).to_have_count(0)

    expect(page.get_by_text("There is no message from here on")).to_be_visible()


def test_a_live_tail_shows_what_is_published(
    page: Page, server: ServerProcess, orders: Topic
) -> None:
    open_page(page, server, "messages/shop/orders")
    page.get_by_role("button", name="Live tail").click()
    expect(page.get_by_text("Waiting for messages")).to_be_visible()

    ok(orders.publish("just now"))

    expect(page.locator("td.wide")).to_have_text(["just now"])


def test_a_transaction_shows_what_it_blocks_and_is_aborted_after_a_question(
    page: Page, server: ServerProcess, orders: Topic
) -> None:
    opened = begin(orders.client, client="billing-7")
    ok(orders.publish("waits", tx=opened.id))
    ok(opened.can_commit("row-1", "row-2"))
    open_page(page, server, "transactions")
    row = page.locator("tbody tr", has_text=opened.id)
    expect(row).to_contain_text("committed readers of shop:orders; removal of old versions")

    row.get_by_role("link", name=opened.id).click()
    expect(page.locator("section")).to_contain_text("2: row-1, row-2")
    page.get_by_role("button", name="Abort").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert ok(orders.client.get(opened.path)).json["state"] == "committing"
    page.get_by_role("button", name="Abort").click()
    page.get_by_role("dialog").get_by_role("button", name="Abort").click()

    expect(page.get_by_text("The transaction is aborted.")).to_be_visible()
    assert ok(orders.client.get(opened.path)).json["state"] == "aborted"


def test_two_snapshot_files_are_compared(page: Page, server: ServerProcess) -> None:
    client = server.client()
    opened = begin(client)
    ok(client.post(f"{TRANSACTIONS}/snapshot"))
    open_page(page, server, "snapshots")
    expect(page.locator("main dl")).to_contain_text(f"1: {opened.id}")

    ok(opened.invalidate())
    page.get_by_role("button", name="Write a snapshot file now").click()
    expect(page.locator("main dl")).to_contain_text("In progressnone")
    page.get_by_label("Compare with").select_option(index=2)

    expect(page.locator("main dl")).to_contain_text(f"In progress: removed1: {opened.id}")
    expect(page.locator("main dl")).to_contain_text(f"Invalid: added1: {opened.id}")


def test_the_system_shows_health_settings_and_the_api(page: Page, server: ServerProcess) -> None:
    ok(server.client().post(f"{TRANSACTIONS}/service/stop"))
    open_page(page, server, "system")

    expect(page.locator("tr", has_text="transactions").locator(".state")).to_have_text("degraded")
    expect(page.locator("#server")).to_contain_text("degraded: transactions")
    expect(page.locator("tr", has_text="server.port")).to_contain_text("flag")
    page.get_by_label("Call").select_option(label="POST /v1/transactions/service/start")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("dialog").get_by_role("button", name="Send").click()

    expect(page.get_by_label("Reply")).to_contain_text('"state": "running"')


def test_the_rate_of_messages_includes_those_of_transactions(
    page: Page, server: ServerProcess, orders: Topic
) -> None:
    """The overview showed 0.00/s, since it counted the requests that only publish."""
    open_page(page, server, "overview")
    rate = page.locator("li", has_text="Messages published").locator(".value")
    expect(rate).to_have_text(re.compile(r"^0"))

    opened = begin(orders.client)
    ok(orders.store(*["m"] * 50, tx=opened.id))
    ok(orders.publish(tx=opened.id))
    ok(opened.commit())

    expect(rate).to_have_text(re.compile(r"^[1-9]"))


def test_settings_with_the_value_of_the_default_are_left_out(page: Page, tmp_path: Path) -> None:
    """A settings file that names every setting made each of them one "that is not the default"."""
    with serve(tmp_path, "tx.default_timeout=30", "tx.max_timeout=7200") as server:
        _expect_the_changed_settings(page, server)


def _expect_the_changed_settings(page: Page, server: ServerProcess) -> None:
    open_page(page, server, "system")

    expect(page.locator("tr", has_text="tx.max_timeout")).to_contain_text("7200")
    expect(
        page.locator("tr", has=page.get_by_text("tx.default_timeout", exact=True))
    ).to_have_count(0)
    page.get_by_label("Only those that differ from the default").uncheck()
    expect(
        page.locator("tr", has=page.get_by_text("tx.default_timeout", exact=True))
    ).to_have_count(1)


def test_a_page_of_a_topic_is_one_request(page: Page, server: ServerProcess) -> None:
    """With 50 partitions and 50 groups it was 252, every five seconds."""
    client = server.client()
    topic = Topic(client, "shop", "wide")
    ok(topic.create({"partitions": 4}))
    for number in range(3):
        join = {"memberId": f"member-{number}", "memberEpoch": 0, "topics": ["wide"]}
        ok(client.post(f"/v1/namespaces/shop/groups/g{number}/heartbeat", join))
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url.removeprefix(server.url)))

    open_page(page, server, "topic/shop/wide")

    groups = page.locator("table", has=page.get_by_role("columnheader", name="Group"))
    expect(groups.locator("tbody tr")).to_have_count(12)
    calls = [each for each in sent if each.startswith("/v1/") and "/topics/wide" in each]
    assert set(calls) == {"/v1/namespaces/shop/topics/wide/overview"}
    assert [each for each in sent if "/groups" in each] == []


def test_avro_data_is_decoded(page: Page, server: ServerProcess, orders: Topic) -> None:
    # The number 3 and the text "ab", as Avro writes them.
    ok(orders.publish({"payload": "\x06\x04ab"}))
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}],
    }
    open_page(page, server, "messages/shop/orders")
    page.get_by_label("Payloads as").select_option("avro")
    page.get_by_label("Avro schema").fill(json.dumps(schema))
    page.get_by_label("Avro schema").blur()

    page.get_by_role("button", name="Details of the message").click()

    assert json.loads(page.locator("pre").inner_text()) == {"id": 3, "note": "ab"}


def test_the_pages_work_by_keyboard_alone(page: Page, server: ServerProcess, orders: Topic) -> None:
    ok(orders.publish("by keyboard"))
    open_page(page, server, "overview")

    def press_until(name: str, *, key: str = "Tab") -> None:
        for _ in range(40):
            page.keyboard.press(key)
            said = page.evaluate(
                "document.activeElement.getAttribute('aria-label')"
                " ?? document.activeElement.textContent"
            )
            if said.strip().startswith(name):
                return
        raise AssertionError(f"{key} never reaches {name}")

    page.locator("body").focus()
    press_until("Skip to the content")
    press_until("Show them")
    before = page.evaluate_handle("document.activeElement")
    page.wait_for_function("before => !before.isConnected", arg=before)
    expect(page.get_by_role("link", name="Show them")).to_be_focused()
    press_until("Topics", key="Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_be_focused()
    expect(page.locator("h1")).to_have_text("Topics")
    expect(page.get_by_role("link", name="Messages of shop:orders")).to_be_visible()
    press_until("Messages of shop:orders")
    page.keyboard.press("Enter")
    expect(page.locator("td.wide", has_text="by keyboard")).to_be_visible()
    press_until("Details of the message")
    page.keyboard.press("Enter")

    expect(page.locator("pre")).to_have_text("by keyboard")


def test_topics_come_in_pages(page: Page, server: ServerProcess) -> None:
    client = server.client()
    for number in range(60):
        ok(Topic(client, "many", f"t{number:02}").create())
    open_page(page, server, "topics")
    expect(page.locator("tbody tr")).to_have_count(50)

    page.get_by_role("link", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(10)
    page.get_by_label("Part of namespace:name").fill("t59")
    page.get_by_role("button", name="Filter").click()

    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_cluster_has_the_topics_of_other_servers(
    page: Page, server: ServerProcess, orders: Topic
) -> None:
    owner = {"incarnation": 1, "epoch": 1, "isAlive": True}
    owned = {"shop:orders": "s1", "shop:bills": "s2", "shop:packers:group": "s2", "shop:mail": "s3"}
    replies = {
        "cluster": {
            "clusterId": "c", "server": {"id": "s1", "incarnation": 1}, "leader": None,
            "servers": [],
        },
        "cluster/topics?limit=10000": {
            "topics": [{"topic": topic, "server": name, **owner} for topic, name in owned.items()],
            "next": None,
        },
    }  # fmt: skip

    def answer(route: Route) -> None:
        route.fulfill(json=replies[route.request.url.removeprefix(f"{server.url}/v1/")])

    page.route("**/v1/cluster*", answer)
    page.route("**/v1/cluster/*", answer)
    open_page(page, server, "topics")

    others = page.locator("table", has=page.get_by_role("columnheader", name="Server"))
    expect(others.locator("tbody tr")).to_have_text(["shop:billsmessagess2", "shop:mailmessagess3"])
    page.get_by_label("Part of namespace:name").fill("mail")
    page.get_by_role("button", name="Filter").click()

    expect(others.locator("tbody tr")).to_have_text(["shop:mailmessagess3"])


def test_a_server_that_is_away_is_reported(page: Page, tmp_path: Path) -> None:
    with serve(tmp_path / "server") as server:
        open_page(page, server, "overview")
        expect(page.get_by_text("In progress")).to_be_visible()
        port = server.port
        server.kill()
        expect(page.get_by_role("alert")).to_contain_text("can't be reached")
        expect(page.locator("#server")).to_have_text("not reachable")

    with serve(tmp_path / "server", port=port):
        expect(page.get_by_role("alert")).to_be_empty()
        expect(page.locator("#server")).to_contain_text("ok")


def test_the_console_asks_for_a_token(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(
        f'[principals.admin]\ntokens = ["{hash_of_token("admin")}"]\n'
        "[[principals.admin.rights]]\nallow = ['administer', 'read']\n"
    )
    with serve(tmp_path / "server", f"server.access_file={file}") as server:
        open_page(page, server, "overview")
        page.get_by_label("Token", exact=True).last.fill(token_of("admin"))
        page.get_by_role("button", name="Use this token").click()

        expect(page.get_by_text("In progress")).to_be_visible()
        assert page.evaluate("sessionStorage.getItem('tuff-token')") == token_of("admin")
        assert page.evaluate("localStorage.length + document.cookie.length") == 0


@pytest.fixture
def other_site() -> Iterator[str]:
    """A page of another site, which sends the form in its query to the server."""

    class Form(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            target = self.path.partition("?")[2]
            script = "<script>document.forms[0].submit()</script>"
            body = f"<form method=post action='{target}'></form>{script}"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Form)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}/"
    served.shutdown()
    thread.join()
    served.server_close()


def test_a_page_of_another_site_aborts_nothing(
    page: Page, server: ServerProcess, other_site: str
) -> None:
    client = server.client()
    one = f"{TRANSACTIONS}/{begin(client).id}"

    with page.expect_response(f"{server.url}{one}/abort") as sent:
        page.goto(f"{other_site}?{server.url}{one}/abort")

    assert sent.value.status == 403
    assert ok(client.get(one)).json["state"] == "in_progress"
