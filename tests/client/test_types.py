"""What `mypy --strict` says of programs that use the library."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
import asyncio
from collections.abc import Collection, Sequence
from concurrent.futures import Future

import tuff

orders = "shop:orders"


class Rows(tuff.TransactionAware):
    name = "rows"

    def tx_changes(self, transaction: tuff.Transaction) -> Collection[bytes]:
        return [b"apple"]
    def commit_tx(self, transaction: tuff.Transaction) -> None: ...
    def rollback_tx(self, transaction: tuff.Transaction) -> None: ...


class LoopRows(tuff.AsyncTransactionAware):
    name = "rows on a loop"

    async def start_tx(self, transaction: tuff.Transaction) -> None: ...
    async def update_tx(self, transaction: tuff.Transaction) -> None: ...
    async def tx_changes(self, transaction: tuff.Transaction) -> Collection[bytes]:
        return [b"apple"]
    async def commit_tx(self, transaction: tuff.Transaction) -> None: ...
    async def rollback_tx(self, transaction: tuff.Transaction) -> None: ...


def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
    tx.publish(orders, *[message.payload for message in messages])


def sell(tx: tuff.TransactionContext) -> int:
    return tx.transaction.write_pointer


def blocking() -> None:
    with tuff.Client(retries=2, token="secret") as client:
        client.publish(orders, "text", b"bytes", ttl=60)
        with client.transaction(Rows(), timeout=3.5) as tx:
            tx.publish(orders, "one", b"two")
        sold: int = client.run(sell, Rows(), attempts=3)
        last: tuff.MessageId = client.poll(orders, limit=sold)[-1].id
        for message in client.subscribe(orders, last):
            payload: bytes = message.payload
        client.publish(orders, tuff.NewMessage("text", key="k", tags=["t"], headers={"h": b"v"}))
        key: bytes | None = client.poll(orders, tags="t")[0].key
        header: bytes | None = client.poll(orders)[0].header("h")
        early: tuff.Published = client.publish(orders, "text", ack="received", key="k")
        id: tuff.MessageId = early.ids[0]
        client.delayed.delete(orders, client.publish(orders, "x", delay=5).delayed_ids[0])
        client.publish(orders, "text", ack=tuff.Ack.NONE)
        with client.publisher(buffer_messages=100, max_block=1, ack="none") as publisher:
            future: Future[tuff.Published] = publisher.publish(orders, b"text", key="k", ttl=60)
        done: bool = client.transactions.get(5).state == tuff.admin.TransactionState.COMMITTED
        positions = tuff.TablePositions(tuff.TransactionalTable("stock"), "me")
        client.subscriber(orders, process, positions=positions).run()


class Decimals:
    def to_bytes(self, value: int, /) -> bytes:
        return b"%d" % value
    def from_bytes(self, data: bytes, /) -> int:
        return int(data)


def typed(client: tuff.Client, reading: tuff.Poll) -> None:
    numbers: tuff.TypedTopic[int] = client.topic(orders, Decimals())
    numbers.publish(1, tuff.NewMessage(2, key="two"))
    found: int = numbers.poll()[0].value
    for message in numbers.subscribe():
        found = message.value
    plain: bytes = reading[0].payload
    with client.transaction() as tx:
        tx.publish(numbers.id, numbers.message(3))
    text: str = client.topic(orders, tuff.STR).poll()[0].value
    raw: bytes = client.topic(orders, tuff.BYTES).poll()[0].value
    pairs = client.topic(orders, tuff.json_serializer(list, lambda form: (form[0], int(form[1]))))
    client.topic(orders, tuff.json_serializer()).publish({"any": ["JSON"]})


async def sell_on_a_loop(tx: tuff.AsyncTransactionContext) -> int:
    await tx.publish(orders, "sold")
    return 1


async def on_a_loop() -> None:
    async with tuff.AsyncClient() as client:
        async with client.transaction(Rows(), LoopRows()) as tx:
            await tx.publish(orders, "one")
        sold: int = await client.run(sell_on_a_loop, LoopRows())
        numbers: tuff.AsyncTypedTopic[int] = client.topic(orders, Decimals())
        await numbers.publish(sold)
        number: int = (await numbers.poll())[0].value
        async for message in client.subscribe(orders):
            payload: bytes = message.payload
    other = tuff.AsyncClient()
    await other.close()


asyncio.run(on_a_loop())
"""

# Each line is wrong, and says so.
WRONG = """
import tuff

client = tuff.Client(timeout="30")  # E
client = tuff.Client()
client.publish(b"shop:orders", "text")  # E
client.publish("shop:orders", "text", key=5)  # E
client.groups.reset("shop", "g", {5: None})  # E
partition: tuff.PartitionId = tuff.TopicId("shop", "orders")  # E
client.publish(tuff.TopicId("shop", "orders"), 5)  # E
client.transaction(object())  # E
client.run(lambda: 5)  # E
client.poll(tuff.TopicId("shop", "orders"), tx=5)  # E
text: str = client.poll(tuff.TopicId("shop", "orders"))[0].payload  # E
client.transaction().publish(tuff.TopicId("shop", "orders"), 5)  # E
wrong: tuff.TransactionType = client.transactions.get(5).state  # E
client.poll(tuff.TopicId("shop", "orders"), undecided="skipped")  # E
tuff.Nothing  # E
texts = client.topic(tuff.TopicId("shop", "orders"), tuff.STR)
texts.publish(5)  # E
texts.publish(tuff.NewMessage(b"bytes"))  # E
number: int = texts.poll()[0].value  # E
client.topic(tuff.TopicId("shop", "orders"), str)  # E
client.publish(tuff.TopicId("shop", "orders"), tuff.NewMessage(5))  # E
client.publish(tuff.TopicId("shop", "orders"), tuff.NewMessage("x", key=5))  # E
client.publish(tuff.TopicId("shop", "orders"), "x", ack="all")  # E
id: tuff.MessageId = client.publisher().publish("shop:o", "x").result()  # E
client.publisher("shop:o")  # E
with tuff.AsyncClient() as loop_client:  # E
    pass
"""


@pytest.fixture(scope="module")
def said(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> dict[str, set[int]]:
    """The lines of both programs that are refused."""
    # Kept between runs: what mypy knows of the standard library takes it longest.
    cache = pytestconfig.cache.mkdir("mypy")
    home = tmp_path_factory.mktemp("types")
    (home / "right.py").write_text(RIGHT)
    (home / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-version=3.11",
            f"--cache-dir={cache}", "right.py", "wrong.py",
        ],
        cwd=home,
        env={"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    lines: dict[str, set[int]] = {"right.py": set(), "wrong.py": set()}
    for line in done.stdout.splitlines():
        file, _, rest = line.partition(":")
        if ": error:" in line:
            lines.setdefault(file, set()).add(int(rest.partition(":")[0]))
    assert done.returncode == 1, done.stdout + done.stderr
    return lines


def test_a_right_program_is_accepted(said: dict[str, set[int]]) -> None:
    assert said["right.py"] == set()
    assert set(said) == {"right.py", "wrong.py"}


def test_each_wrong_use_is_refused(said: dict[str, set[int]]) -> None:
    wrong = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# E")}

    assert said["wrong.py"] == wrong
