"""What was open before a fork: connections are each process's own, a table is its opener's."""

import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread

from tests.client.test_transport import EMPTY_LIST

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, sys
import tuff

client = tuff.connect(sys.argv[1])
client.topics.namespaces()
child = os.fork()
if child == 0:
    client.topics.namespaces()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.topics.namespaces()
client.close()
"""


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
        subprocess.run([sys.executable, "-c", PROGRAM, url], cwd=ROOT, check=True, timeout=60)
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()

    assert heard == [2, 1]


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
        except tuff.StorageUnavailableError as error:
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
    done = subprocess.run(
        [sys.executable, "-c", TABLE_PROGRAM, str(tmp_path / "table")],
        cwd=ROOT,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )

    first, second, *rest = done.stdout.splitlines()
    assert "before this process was forked" in first
    assert "is in use by process" in second
    assert rest == ["ended"]
