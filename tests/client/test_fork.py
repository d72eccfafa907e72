"""What was open before a fork: connections and stops are each process's own, a table is its
opener's."""

import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread

import tuff
from tests.client.test_transport import EMPTY_LIST
from tests.http.process import ServerProcess

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
import tuff

client = tuff.Client(sys.argv[1])
client.topics.namespaces()
child = os.fork()
if child == 0:
    client.topics.namespaces()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.topics.namespaces()
client.close()
"""

CHAINED = """
import os, sys
import tuff

client = tuff.Client(sys.argv[1])
chained = client.transaction(chain=True)
with chained:
    pass
child = os.fork()
if child == 0:
    client.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len(client.transactions.overview().in_progress))
client.close()
"""

STOPPED_CHILD = """
import os, select
from tuff.stop_signals import Stop, StoppedError

stop = Stop()
child = os.fork()
if child == 0:
    stop.set()
    try:
        stop.wait(3600)
    except StoppedError:
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert select.select([stop], [], [], 0) == ([], [], [])
"""

SUBSCRIBER = """
import asyncio, os, signal, sys
import tuff

topic = tuff.TopicId("client", sys.argv[2])
heard = []

def process(messages, tx):
    heard.extend(message.payload for message in messages)
    if len(heard) == 2:
        subscriber.stop()
        return
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

async def main(table):
    global subscriber
    async with tuff.AsyncClient(sys.argv[1]) as client:
        positions = tuff.TablePositions(table, "parent")
        subscriber = client.subscriber(topic, process, positions=positions, batch=1)
        signal.signal(signal.SIGTERM, lambda *_: subscriber.stop())
        await subscriber.run()

with tuff.TransactionalTable(sys.argv[3]) as opened:
    asyncio.run(main(opened))
print(*heard)
"""


def output_of(program: str, *arguments: str) -> list[str]:
    """The lines that a program prints; it must end with exit code 0."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def serve_all(listener: socket.socket, heard: list[int]) -> None:
    """Answers each connection as long as it speaks; notes how many requests each of them had."""
    workers: list[Thread] = []

    def answer(caller: socket.socket, number: int) -> None:
        with caller:
            while caller.recv(65536):
                heard[number] += 1
                caller.sendall(EMPTY_LIST)

    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            break
        heard.append(0)
        workers.append(Thread(target=answer, args=(caller, len(heard) - 1)))
        workers[-1].start()
    for worker in workers:
        worker.join()


def test_a_forked_process_uses_no_connection_of_its_parent() -> None:
    """Both read from one socket, and took each other's answers."""
    heard: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = Thread(target=serve_all, args=(listener, heard))
        serving.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        output_of(PROGRAM, url)
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()

    assert heard == [2, 1]


def test_a_forked_process_ends_no_chain_of_its_parent(server: ServerProcess) -> None:
    assert output_of(CHAINED, server.url) == ["1"]


TABLE_PROGRAM = """
import os, sys
import tuff

home = sys.argv[1]
table = tuff.TransactionalTable(home)
table.start_tx(tuff.Transaction(transaction_id=2, read_pointer=1, write_pointer=2))
if os.fork() == 0:
    for call in (lambda: table.get(b"a"), lambda: tuff.TransactionalTable(home)):
        try:
            call()
        except (tuff.WrongStateError, tuff.errors.StorageUnavailableError) as error:
            print(error)
    table.close()
    print("ended", flush=True)
    sys.exit(0)
assert os.wait()[1] == 0
assert table.get(b"a") is None
table.close()
tuff.TransactionalTable(home).close()
"""


def test_a_forked_process_is_refused_the_table_of_its_parent(tmp_path: Path) -> None:
    """Both wrote, and LevelDB could not read the table any more."""
    first, second, *rest = output_of(TABLE_PROGRAM, str(tmp_path / "table"))

    assert "before this process was forked" in first
    assert "is in use by process" in second
    assert rest == ["ended"]


PUBLISHER = """
import os, sys, tuff
client = tuff.Client(sys.argv[1])
topic = tuff.TopicId("client", sys.argv[2])
with client.publisher(linger=60) as publisher:
    waiting = publisher.publish(topic, "one")
    child = os.fork()
    if child == 0:
        for call in (lambda: publisher.publish(topic, "two"), publisher.flush, waiting.result):
            try:
                call()
            except (tuff.TuffError, RuntimeError) as error:
                print(error)
        publisher.close()
        print("closed", flush=True)
        with client.publisher() as own:
            own.publish(topic, "own")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    publisher.publish(topic, "three")
assert waiting.result() is not None
print([message.payload for message in client.poll(topic)])
"""

LOOP_PUBLISHER = """
import asyncio, os, sys, tuff
topic = tuff.TopicId("client", sys.argv[2])

async def inherit(publisher):
    for call in (lambda: publisher.publish(topic, "two"), publisher.flush):
        try:
            await call()
        except (tuff.TuffError, RuntimeError) as error:
            print(error)
    await publisher.close()
    print("closed", flush=True)

async def main():
    async with tuff.AsyncClient(sys.argv[1]) as client:
        async with client.publisher(linger=60) as publisher:
            await publisher.publish(topic, "one")
            child = os.fork()
            if child == 0:
                asyncio._set_running_loop(None)
                asyncio.run(inherit(publisher))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            await publisher.publish(topic, "three")
        print([message.payload for message in await client.poll(topic)])

asyncio.run(main())
"""


def test_a_forked_process_is_refused_the_publisher_of_its_parent(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    """Its thread is not there: `flush` waited for ever, and what was sent went nowhere."""
    *refusals, closed, published = output_of(PUBLISHER, server.url, topic.name)

    assert [line.count("before this process was forked") for line in refusals] == [1, 1, 1]
    assert (closed, published) == ("closed", "[b'own', b'one', b'three']")


def test_a_forked_process_is_refused_the_publisher_of_its_parents_loop(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    *refusals, closed, published = output_of(LOOP_PUBLISHER, server.url, topic.name)

    assert [line.count("before this process was forked") for line in refusals] == [1, 1]
    assert (closed, published) == ("closed", "[b'one', b'three']")


CONSUMER = """
import os, sys, tuff
client = tuff.Client(sys.argv[1])
topic = tuff.TopicId("client", sys.argv[2])
client.publish(topic, "one")
with client.consumer(topic, group="forked") as consumer:
    batch = consumer.poll()
    child = os.fork()
    if child == 0:
        for call in (consumer.poll, consumer.commit):
            try:
                call()
            except RuntimeError as error:
                print(error)
        consumer.close()
        print("closed", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    consumer.commit()
    print(client.groups.get("client", "forked").state)
"""


def test_a_forked_process_is_refused_the_consumer_of_its_parent(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    """It would commit as the same member, and its `close` would end the membership."""
    *refusals, closed, state = output_of(CONSUMER, server.url, topic.name)

    assert [line.count("before this process was forked") for line in refusals] == [1, 1]
    assert (closed, state) == ("closed", "stable")


def test_a_stop_in_a_forked_process_does_not_stop_its_parent() -> None:
    """The parent's waits ended without a stop, and later ones did not end by a stop."""
    assert output_of(STOPPED_CHILD) == []


def test_a_forked_process_that_is_terminated_does_not_stop_the_subscriber_of_its_parent(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId, tmp_path: Path
) -> None:
    """It inherits the signal handler. The parent spun, and processed nothing any more."""
    client.publish(topic, "one", "two")

    printed = output_of(SUBSCRIBER, server.url, topic.name, str(tmp_path / "table"))

    assert printed == ["b'one' b'two'"]


TRANSACTION = """
import os, sys, tuff
client = tuff.Client(sys.argv[1])
topic = tuff.TopicId("client", sys.argv[2])

def refused(call):
    try:
        call()
    except tuff.WrongStateError as error:
        print(error)

def commit():
    with client.transaction() as tx:
        tx.publish(topic, "parent")
        child = os.fork()
        if child:
            return child
        for call in (
            lambda: tx.publish(topic, "child"),
            lambda: tx.add_changes(b"child"),
            lambda: tx.poll(topic),
            lambda: tx.transaction,
            lambda: tx.add(None),
            tx.checkpoint,
            tx.abort,
            tx.__enter__,
        ):
            refused(call)
    print("the child has committed as well")

def roll_back():
    with client.transaction() as tx:
        tx.publish(topic, "parent too")
        child = os.fork()
        if child == 0:
            raise ValueError("the child's own")
    return child

try:
    child = commit()
except tuff.WrongStateError as error:
    print(error)
    with client.transaction() as own:
        own.publish(topic, "child")
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
try:
    child = roll_back()
except ValueError:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sorted(message.payload for message in client.poll(topic, isolation="committed")))
"""

CHAINED_IN_A_CHILD = """
import os, sys, tuff
client = tuff.Client(sys.argv[1])
topic = tuff.TopicId("client", sys.argv[2])
chained = client.transaction(chain=True)
with chained:
    pass
child = os.fork()
with chained as tx:
    tx.publish(topic, "parent" if child else "child")
    chained.end_chain()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sorted(message.payload for message in client.poll(topic, isolation="committed")))
print(len(client.transactions.overview().in_progress))
"""

LOOP_TRANSACTION = """
import asyncio, os, sys, tuff
topic = tuff.TopicId("client", sys.argv[2])

async def main():
    async with tuff.AsyncClient(sys.argv[1]) as client:
        try:
            async with client.transaction() as tx:
                await tx.publish(topic, "parent")
                child = os.fork()
        except tuff.WrongStateError as error:
            print(error, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        committed = await client.poll(topic, isolation="committed")
        print([message.payload for message in committed])

asyncio.run(main())
"""


def test_a_forked_process_is_refused_the_transaction_of_its_parent(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    """Both committed "successfully", and the messages of the second one were dropped."""
    *refusals, published = output_of(TRANSACTION, server.url, topic.name)

    assert [line.count("before this process was forked") for line in refusals] == [1] * 9
    assert published == "[b'child', b'parent', b'parent too']"


def test_a_forked_process_is_refused_the_transaction_of_its_parents_loop(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    refusal, published = output_of(LOOP_TRANSACTION, server.url, topic.name)

    assert "before this process was forked" in refusal
    assert published == "[b'parent']"


def test_a_forked_process_does_not_use_the_chained_transaction_of_its_parent(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    """Both used the transaction that the last commit had started."""
    published, in_progress = output_of(CHAINED_IN_A_CHILD, server.url, topic.name)

    assert published == "[b'child', b'parent']"
    assert in_progress == "0"


SQL = """
import os, sqlite3, sys, tuff
from tuff.sql.sqlite import SqliteDatabase
client = tuff.Client(sys.argv[1])
topic = tuff.TopicId("client", sys.argv[2])
database = SqliteDatabase(sys.argv[3], "shop")
connection = sqlite3.connect(sys.argv[3])
connection.execute("CREATE TABLE tuff_commits (pointer BIGINT PRIMARY KEY)")
connection.commit()
try:
    with client.sql_transaction(database, connection) as tx:
        tx.publish(topic, "parent")
        child = os.fork()
        if child == 0:
            try:
                tx.publish(topic, "child")
            except tuff.WrongStateError as error:
                print(error)
except tuff.WrongStateError as error:
    print(error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print([message.payload for message in client.poll(topic, isolation="committed")])
"""


def test_a_forked_process_is_refused_the_sql_transaction_of_its_parent(
    server: ServerProcess, topic: tuff.TopicId, tmp_path: Path
) -> None:
    *refusals, published = output_of(SQL, server.url, topic.name, str(tmp_path / "shop"))

    assert [line.count("before this process was forked") for line in refusals] == [1, 1]
    assert published == "[b'parent']"
