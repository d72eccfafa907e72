"""Two stores of different ages are detected, whichever of them is older (design §6).

Each history is one that an operator makes with `cp` or `rm`. Without the check the server started:
committed messages were missing, or rows of aborted transactions were visible, and it reported that
all was well.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.data_directory import DataDirectory
from admin.salvage import salvage
from tests.admin.files import found_in, now_ms
from tests.http.calls import TRANSACTIONS, Topic, begin, entry
from tests.http.client import ok, refused, until
from tests.http.process import serve

FORGETFUL = "tx.outcome_retention=0.1"


class Stores:
    """A data directory, and the server that runs on it."""

    def __init__(self, home: Path, *settings: str) -> None:
        self._home = home
        self._settings = settings
        self.start()

    def start(self) -> None:
        self.server = serve(self._home, *self._settings)
        self.client = self.server.client()
        self.topic = Topic(self.client, "one", "main")

    @property
    def data(self) -> Path:
        return self.server.data

    def put_aside(self, store: str) -> Path:
        """A copy of the current state of a store."""
        aside = self._home / f"aside-{store}"
        shutil.copytree(self.data / store, aside)
        return aside

    def put_back(self, store: str, aside: Path) -> None:
        shutil.rmtree(self.data / store)
        shutil.copytree(aside, self.data / store)

    def publish_and_commit(self, payload: str) -> None:
        tx = begin(self.client)
        ok(self.topic.publish(payload, tx=tx.id))
        ok(tx.commit())

    def require_lost(self) -> None:
        """fsck finds it; a server takes and serves no messages until the loss is accepted."""
        assert found_in(self.data)
        self.start()
        assert self.client.get("/health/ready").status == 503
        refused(Topic(self.client, "after", "all").create(), 503, "storage_unavailable")
        detail = self.client.get("/health/ready").json["checks"]["storage"]["detail"]
        assert "messages" in detail
        assert "server.accept_lost_messages=" in detail

    def require_detected(self, words: str) -> None:
        """fsck finds it; a server reports it, and serves messages without transactions."""
        assert found_in(self.data)
        self.start()
        problem = refused(self.client.post(TRANSACTIONS), 503, "transactions_unavailable")
        assert words in problem["detail"]
        assert "put files of one backup together" in problem["detail"]
        ready = ok(self.client.get("/health/ready")).json
        assert ready["checks"]["transactions"]["status"] == "degraded"
        ok(Topic(self.client, "after", "all").create())


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path / "home")
    ok(made.topic.create())
    yield made
    made.server.end()


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path / "home", FORGETFUL)
    ok(made.topic.create())
    yield made
    made.server.end()


def test_a_server_continues_on_transactions_that_salvage_kept_without_messages(
    stores: Stores,
) -> None:
    stores.publish_and_commit("there")
    stores.server.kill()
    shutil.rmtree(stores.data / "messages")

    salvage(
        DataDirectory.of(stores.data),
        stores.data.with_name("new"),
        now_ms=now_ms(),
        new_store_id=lambda: "never needed",
    )
    shutil.rmtree(stores.data)
    stores.data.with_name("new").rename(stores.data)

    stores.start()
    ok(stores.topic.create())
    stores.publish_and_commit("and so on")
    assert stores.topic.committed() == ["and so on"]


@pytest.mark.parametrize("is_clean", [True, False])
def test_messages_from_before_a_commit(stores: Stores, *, is_clean: bool) -> None:
    stores.publish_and_commit("before")
    stores.server.kill()
    aside = stores.put_aside("messages")
    stores.start()
    stores.publish_and_commit("after")
    stores.server.end() if is_clean else stores.server.kill()

    stores.put_back("messages", aside)

    stores.require_lost()


def test_messages_from_the_middle_of_a_transaction_that_published_with_its_commit(
    stores: Stores,
) -> None:
    """Some of its rows existed, and a part of what it committed was shown as all of it."""
    tx = begin(stores.client, timeout=600)
    ok(stores.topic.publish("there", tx=tx.id))
    stores.server.end()
    aside = stores.put_aside("messages")
    stores.start()
    ok(stores.client.post(f"{tx.path}/commit", {"publish": [entry(stores.topic, "missing")]}))
    stores.server.end()

    stores.put_back("messages", aside)

    stores.require_lost()


def test_messages_from_before_an_abort_that_is_forgotten(forgetful: Stores) -> None:
    """They were shown as committed: a forgotten transaction is neither open nor invalid."""
    undone = begin(forgetful.client)
    ok(forgetful.topic.publish("never committed", tx=undone.id))
    forgetful.publish_and_commit("and with it the start of the other is on the disk")
    forgetful.server.kill()
    aside = forgetful.put_aside("messages")
    forgetful.start()
    ok(forgetful.client.post(f"{TRANSACTIONS}/{undone.id}/abort"))
    ok(begin(forgetful.client).commit(changes=["a later end, without messages"]))
    path = f"{TRANSACTIONS}/{undone.id}"
    until(lambda: forgetful.client.get(path).status == 404, what="it to be forgotten")
    ok(forgetful.client.post(f"{TRANSACTIONS}/snapshot"))
    forgetful.server.kill()

    forgetful.put_back("messages", aside)

    forgetful.require_detected("whose outcome is not known")


def test_a_transaction_log_that_ends_before_a_commit(stores: Stores) -> None:
    """No pointers were reserved in between. The transaction was in progress again, and its abort
    found no rows to mark, so that its messages stayed visible although it was aborted."""
    tx = begin(stores.client)
    ok(stores.topic.publish("read by others", tx=tx.id))
    aside = stores.put_aside("snapshots")
    ok(tx.commit())
    assert stores.topic.committed() == ["read by others"]
    ok(stores.topic.publish("plain"))
    stores.server.kill()

    stores.put_back("snapshots", aside)

    stores.require_detected("the transaction files are older")


def test_transaction_files_without_the_newest(stores: Stores) -> None:
    tx = begin(stores.client)
    ok(stores.topic.publish("read by others", tx=tx.id))
    before = set((stores.data / "snapshots").iterdir())
    ok(stores.client.post(f"{TRANSACTIONS}/snapshot"))
    ok(tx.commit())
    ok(stores.topic.publish("plain"))
    stores.server.kill()

    for path in set((stores.data / "snapshots").iterdir()) - before:
        path.unlink()

    stores.require_detected("the transaction files are older")


def test_a_memory_store_begins_empty_with_every_start(tmp_path: Path) -> None:
    """Its messages are gone by design, and that proves nothing about the transaction files."""
    made = Stores(tmp_path / "home", "messaging.store=memory")
    ok(made.topic.create())
    made.publish_and_commit("gone with the process")
    made.server.end()

    made.start()

    ok(made.client.post(TRANSACTIONS))
    made.server.end()
