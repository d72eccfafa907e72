"""Clients that disconnect before the reply, and stops of the transaction service under load."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.history import Attempt, Outcome, Recorder, Requests, View, payloads
from tests.faults.workload_messages import (
    TOPICS,
    check_outcomes,
    create_topics,
    entries_of,
    read_all,
    require_no_violation,
    resolved,
    topic_of,
)
from tests.http.calls import TRANSACTIONS, begin
from tests.http.client import JSON, Client, Reply, ok, until
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess

HANG_UP_COUNT = 60
UNIT_COUNT = 25


@pytest.fixture
def running(new_server: NewServer) -> ServerProcess:
    server = new_server()
    create_topics(server.client())
    return server


def hang_up(server: ServerProcess, path: str, body: object) -> None:
    """Send a whole request and close the connection without waiting for the answer."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)


def requests_of(client: int, number: int) -> Requests:
    return (
        (TOPICS[0], payloads(client, number, 0, 2)), (TOPICS[1], payloads(client, number, 1, 1)),
    )  # fmt: skip


def _hung_up(server: ServerProcess, client: Client, number: int) -> Attempt:
    kind, requests = number % 3, requests_of(number % 3, number)
    recorder = Recorder(kind)
    if kind == 0:
        sent = requests[0][1]
        hang_up(server, f"{topic_of(client, TOPICS[0]).path}/publish", {"messages": sent})
        return recorder.ended(Outcome.UNKNOWN, requests[:1])
    body: dict[str, object] = {"publish": entries_of(client, requests)}
    if kind == 1:
        body["requestId"] = f"hang up {number}"
        hang_up(server, f"{TRANSACTIONS}/run", body)
        return recorder.ended(Outcome.UNKNOWN, requests, body=body)
    tx = begin(client)
    hang_up(server, f"{tx.path}/commit", body)
    return recorder.ended(Outcome.UNKNOWN, requests, pointer=tx.id, body=body)


def test_a_request_whose_client_hangs_up_is_not_half_done(running: ServerProcess) -> None:
    client = running.client()

    history = [
        resolved(client, _hung_up(running, client, number)) for number in range(HANG_UP_COUNT)
    ]

    # Every request was sent whole, so a plain publish is done sooner or later, not perhaps.
    [last] = [each.publishes[0].values[0] for each in history if not each.is_transaction][-1:]
    until(lambda: last in topic_of(client, TOPICS[0]).read())
    require_no_violation([*history, read_all(client, View.COMMITTED)])
    check_outcomes(client, history)


def _attempt_under_stops(client: Client, worker: int, number: int) -> Attempt:
    requests, recorder = requests_of(worker, number), Recorder(worker)
    started = until(lambda: _answered(client.post(TRANSACTIONS)), within_s=20)
    assert started is not None
    pointer = started.json["transactionId"]
    body: dict[str, object] = {
        "publish": entries_of(client, requests),
        "changes": [f"{worker}.{number}"],
    }
    reply = client.post(f"{TRANSACTIONS}/{pointer}/commit", body)
    assert reply.status in {200, 503}, reply
    outcome = Outcome.OK if reply.status == 200 else Outcome.UNKNOWN
    return recorder.ended(outcome, requests, pointer=pointer, body=body)


def _answered(reply: Reply) -> Reply | None:
    assert reply.status in {200, 201, 503}, reply
    return None if reply.status == 503 else reply


@pytest.mark.slow
def test_every_outcome_is_known_after_stops_of_the_service_under_load(
    running: ServerProcess,
) -> None:
    clients = [running.client() for _ in range(6)]
    admin = running.client()
    resolving = running.client()

    def work(worker: int) -> list[Attempt]:
        return [
            _attempt_under_stops(clients[worker], worker, number) for number in range(UNIT_COUNT)
        ]

    def publish() -> list[Attempt]:
        done: list[Attempt] = []
        while not all(job.done() for job in jobs):
            sent, recorder = payloads(9, len(done), 0, 1), Recorder(9)
            ok(topic_of(resolving, TOPICS[2]).publish(*sent))
            done.append(recorder.ended(Outcome.OK, ((TOPICS[2], sent),)))
        return done

    with ThreadPoolExecutor(7) as threads:
        jobs = [threads.submit(work, worker) for worker in range(6)]
        publishing = threads.submit(publish)
        while not all(job.done() for job in jobs):
            ok(admin.post(f"{TRANSACTIONS}/service/stop"))
            ok(admin.post(f"{TRANSACTIONS}/service/start"))
            ok(begin(admin).commit(readOnly=True))
        plain = publishing.result()

    asked = [resolved(admin, each) for job in jobs for each in job.result()]
    require_no_violation([*asked, *plain, read_all(admin, View.COMMITTED)])
    check_outcomes(admin, asked)
