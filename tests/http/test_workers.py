"""A server with worker processes: each may die or hang, and the others go on.

That calls have the same replies through workers, the other modules of this folder say
(`TUFF_TEST_WORKERS`).
"""

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPException
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.calls import Topic
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import Launch, NewServer, one_sentence
from tests.http.process import ServerProcess, serve
from tests.http.session_client import END, PUBLISH, START, SessionClient
from tests.http.test_server_tls import NO_CERTIFICATE, Files

WORKERS = 2
SETTING = f"server.workers={WORKERS}"
STALLED_S = 2.0  # a worker that does not answer for so long is the stalled one
HANGS_S_MAX = 30.0  # a worker that hangs is replaced after ten seconds


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with workers, for tests that end only workers."""
    running = serve(tmp_path_factory.mktemp("workers"), SETTING)
    yield running
    running.end()


def worker_pids(server: ServerProcess) -> list[int]:
    lists = Path(f"/proc/{server.pid}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def gauge(client: Client, name: str) -> dict[str, float]:
    """The samples of a metric, by the number of the worker."""
    families = text_string_to_metric_families(ok(client.get("/metrics")).body.decode())
    return {
        sample.labels.get("worker", ""): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def is_whole(client: Client) -> bool:
    """Whether all workers accept connections."""
    return set(gauge(client, "tuff_worker_up").values()) == {1.0}


@contextmanager
def clients_of_each(server: ServerProcess) -> Iterator[list[Client]]:
    """Connections, of which each worker has one at least."""
    with ExitStack() as opened:

        def connect() -> Client:
            made = opened.enter_context(closing(Client(server.port, timeout_s=STALLED_S)))
            ok(made.get("/health/live"))
            return made

        made = [connect()]
        until(lambda: sum(gauge(made[0], "tuff_worker_connections").values()) == 1)
        while not all(gauge(made[0], "tuff_worker_connections").values()):
            made.append(connect())
        yield made


def still_answered(clients: list[Client]) -> list[bool]:
    def is_answered(client: Client) -> bool:
        try:
            return client.get("/health/live").status == 200
        except OSError:
            return False

    return list(map(is_answered, clients))


def test_a_worker_that_is_killed_takes_only_its_own_connections_along(
    shared: ServerProcess,
) -> None:
    with clients_of_each(shared) as clients:
        restarts = gauge(clients[0], "tuff_worker_restarts_total")[""]

        os.kill(worker_pids(shared)[0], signal.SIGKILL)
        until(lambda: not all(still_answered(clients)))
        answered = still_answered(clients)

    assert any(answered)
    with closing(Client(shared.port)) as later:
        until(lambda: gauge(later, "tuff_worker_restarts_total")[""] == restarts + 1)
        until(lambda: is_whole(later))
    assert "code=worker_ended worker=" in shared.stderr()


def test_a_worker_that_stalls_delays_no_client_of_another_one(shared: ServerProcess) -> None:
    with clients_of_each(shared) as clients:
        stalled = worker_pids(shared)[0]

        os.kill(stalled, signal.SIGSTOP)
        try:
            found = still_answered(clients)
        finally:
            os.kill(stalled, signal.SIGCONT)

    assert set(found) == {True, False}  # the stalled worker has at least one of them


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced(new_server: NewServer) -> None:
    server = new_server(SETTING)
    hanging = worker_pids(server)[0]

    os.kill(hanging, signal.SIGSTOP)

    until(lambda: hanging not in worker_pids(server), within_s=HANGS_S_MAX)
    until(lambda: len(worker_pids(server)) == WORKERS)
    assert "code=worker_hangs worker=" in server.stderr()


class Load:
    """Publishes in a thread until it is stopped, over new connections where one breaks."""

    def __init__(self, port: int, number: int) -> None:
        self.acknowledged: list[str] = []
        self._port = port
        self._number = number
        self._is_stopped = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def stop(self) -> list[str]:
        self._is_stopped.set()
        self._thread.join()
        return self.acknowledged

    def _run(self) -> None:
        client = Client(self._port, timeout_s=STALLED_S)
        topic = Topic(client, "default", "load")
        for number in count():
            if self._is_stopped.is_set():
                break
            payload = f"{self._number}-{number}"
            try:
                ok(topic.publish(payload))
            except (OSError, HTTPException):
                client.close()
            else:
                self.acknowledged.append(payload)
        client.close()


def test_no_acknowledged_message_is_lost_when_workers_and_the_main_process_are_killed(
    tmp_path: Path,
) -> None:
    server = serve(tmp_path, SETTING)
    ok(Topic(server.client(), "default", "load").create())
    loads = [Load(server.port, number) for number in range(4)]
    try:
        until(lambda: all(each.acknowledged for each in loads))
        os.kill(worker_pids(server)[0], signal.SIGKILL)
        reached = [len(each.acknowledged) for each in loads]
        until(lambda: all(len(e.acknowledged) > n for e, n in zip(loads, reached, strict=True)))
        until(lambda: len(worker_pids(server)) == WORKERS)
        workers = worker_pids(server)
    finally:
        server.kill()
        acknowledged = {payload for each in loads for payload in each.stop()}

    try:
        until(lambda: not any(map(is_alive, workers)), what="the end of the workers")
    finally:
        for pid in filter(is_alive, workers):
            os.kill(pid, signal.SIGKILL)
    for code in ("code=worker_ready ", "code=worker_orphaned "):
        assert code in server.stderr()
    with serve(tmp_path, SETTING) as again:
        assert acknowledged <= set(all_payloads(Topic(again.client(), "default", "load")))


def all_payloads(topic: Topic) -> Iterator[str]:
    position: dict[str, object] = {}
    while messages := ok(topic.poll(position)).json:
        yield from (each["payload"] for each in messages)
        position = {"startFrom": messages[-1]["id"], "inclusive": False}


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def counted(client: Client, operation: str, outcome: str) -> float:
    """How many requests the metrics of the server have."""
    name = f'tuff_request_seconds_count{{operation="{operation}",outcome="{outcome}"}}'
    lines = ok(client.get("/metrics")).body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_what_a_worker_refuses_alone_is_counted(shared: ServerProcess) -> None:
    client = Client(shared.port)

    before = counted(client, "GET unmatched", "4xx")
    refused(client.get("/nothing"), 404, "not_found", naming="/nothing")

    assert counted(client, "GET unmatched", "4xx") == before + 1
    client.close()


def test_a_head_of_a_probe_is_counted_as_a_get_as_without_workers(
    shared: ServerProcess, server: ServerProcess
) -> None:
    for each in (shared, server):
        client = Client(each.port)

        before = counted(client, "GET /health/live", "2xx")
        ok(client.send("HEAD", "/health/live"))

        assert counted(client, "GET /health/live", "2xx") == before + 1
        client.close()


def test_the_bound_on_connections_is_that_of_all_workers_together(new_server: NewServer) -> None:
    server = new_server(SETTING, "server.max_connections=16")
    held = [server.client() for _ in range(16)]
    for each in held:
        ok(each.get("/health/live"))

    reply = server.client().get("/health/live")

    refused(reply, 429, "overloaded", naming="server.max_connections=16")
    assert all(still_answered(held))


def test_the_port_of_a_server_with_workers_is_not_shared(
    shared: ServerProcess, launch: Launch
) -> None:
    second = launch("--port", str(shared.port), "--set", SETTING)

    assert second.wait_exit() == 1
    assert f"port {shared.port} on 127.0.0.1 is in use" in one_sentence(second)


def test_a_session_through_a_worker_ends_with_the_server(new_server: NewServer) -> None:
    server = new_server(SETTING)
    ok(Topic(server.client(), "default", "t").create())
    with SessionClient(server.port) as session:
        status, fields, _ = session.call(PUBLISH, "default", "t", body={"messages": [b"hi"]})
        os.kill(server.pid, signal.SIGTERM)
        end = session.read()

    assert (status, "Tuff-First-Id" in fields) == (200, True)
    assert end == [6, None]
    assert server.process.wait(10) == 0
    assert "worker_hangs" not in server.stderr()


def test_a_session_through_a_worker_has_the_principal_of_its_certificate(tmp_path: Path) -> None:
    files = Files(tmp_path / "files")
    context = ssl.create_default_context(cafile=files.servers)
    context.load_cert_chain(files.of_client("billing.example"))
    with (
        serve(tmp_path, *files.settings(), SETTING) as server,
        SessionClient(server.port, context=context) as session,
    ):
        status, _, started = session.call(START, body={})
        files.access.write_text(NO_CERTIFICATE)
        end = session.read()

    assert (status, started["type"]) == (201, "short")
    assert (end[0], end[1]["code"]) == (END, "unauthenticated")


def test_a_connection_that_waits_for_a_dead_worker_is_accepted_by_its_successor(
    new_server: NewServer,
) -> None:
    server = new_server("server.workers=1")
    (worker,) = worker_pids(server)
    os.kill(worker, signal.SIGSTOP)

    with socket.create_connection(("127.0.0.1", server.port), 20) as waiting:
        waiting.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        os.kill(worker, signal.SIGKILL)

        assert waiting.recv(65_536).startswith(b"HTTP/1.1 200 ")
