"""Transaction files that are damaged, torn or missing never stop messaging (protocol §8)."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.http.calls import TRANSACTIONS, Topic, Tx, begin, created
from tests.http.client import Client, ok, refused
from tests.http.conftest import NewServer
from tests.http.process import serve
from tx.file_headers import list_files

Left = tuple[Path, Tx]  # what a server left: its home, and a transaction that was open
Copy = Callable[[str], Left]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Left]:
    """What a server left that was stopped (`stopped`), and one that was killed (`killed`).

    Both have messages, two snapshots and a log with an open transaction behind the last.
    """
    home = tmp_path_factory.mktemp("left")
    running = serve(home)
    client = running.client()
    topic = created(client, "default", "t")
    ok(topic.publish("a"))
    tx = begin(client)
    ok(topic.publish("b", tx=tx.id))
    ok(tx.commit(changes=["k"]))
    ok(client.post(f"{TRANSACTIONS}/snapshot"))
    open_one = begin(client)
    ok(begin(client).commit(changes=["k2"]))
    running.kill()
    killed = shutil.copytree(home, home.with_name("killed"))
    running = serve(home)
    running.end()
    return {"killed": (killed, open_one), "stopped": (home, open_one)}


@pytest.fixture
def copy(left: dict[str, Left], tmp_path: Path) -> Copy:
    """A copy of what was left, to be spoilt."""

    def make(how: str) -> Left:
        home, tx = left[how]
        return shutil.copytree(home, tmp_path / how), tx

    return make


def files(home: Path) -> list[Path]:
    found = [path for path, _ in list_files(home / "data" / "snapshots")]
    assert found
    return found


def flip(path: Path, *places: int) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 0xFF
    path.write_bytes(data)


def goes_on_without_transactions(client: Client, tx: Tx) -> dict[str, Any]:
    """Messaging works and transactions answer 503; what readiness says of it."""
    topic, tx = Topic(client, "default", "t"), Tx(client, tx.object)
    assert topic.read() == ["a", "b"]
    ok(topic.publish("c"))
    assert topic.read() == ["a", "b", "c"]
    for reply in (
        client.post(TRANSACTIONS), tx.commit(), tx.outcome(), topic.publish("x", tx=tx.id),
        client.post(f"{TRANSACTIONS}/snapshot"),
    ):  # fmt: skip
        refused(reply, 503, "transactions_unavailable")
        assert reply.header("Retry-After")
    assert topic.committed()[0] == "a"
    shown: dict[str, Any] = ok(client.get("/health/ready")).json
    assert shown["status"] == "degraded"
    return shown


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_damaged_files_are_named_and_stop_transactions_only(
    copy: Copy, new_server: NewServer, how: str
) -> None:
    home, tx = copy(how)
    names = [path.name for path in files(home)]
    for path in files(home):
        flip(path, 8, path.stat().st_size // 2)

    client = new_server(home=home).client()

    detail = goes_on_without_transactions(client, tx)["checks"]["transactions"]["detail"]
    assert any(name in detail for name in names), detail
    refused(client.post(f"{TRANSACTIONS}/service/start"), 503, "transactions_unavailable")


def test_a_missing_directory_is_damage_and_never_an_empty_beginning(
    copy: Copy, new_server: NewServer
) -> None:
    home, tx = copy("killed")
    shutil.rmtree(home / "data" / "snapshots")

    goes_on_without_transactions(new_server(home=home).client(), tx)
