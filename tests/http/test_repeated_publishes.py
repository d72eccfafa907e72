"""Publishes that are sent again with their request id (protocol §3.1, Repetition)."""

from contextlib import closing
from pathlib import Path

from tests.http.calls import Topic, created, ids
from tests.http.client import Client, ok, refused
from tests.http.process import ServerProcess, serve
from tests.http.session_client import PUBLISH, SessionClient

PRODUCER = "8f3a61c2d5e7b904"


def numbered(number: int, *, of: str = PRODUCER) -> dict[str, object]:
    return {"requestId": f"{of}.{number}"}


def test_a_repetition_has_the_ids_of_the_first_attempt(topic: Topic) -> None:
    before = ok(topic.publish("a", "b", **numbered(1)))

    repeated = ok(topic.publish("a", "b", **numbered(1), age=2000))

    assert topic.read() == ["a", "b"]
    assert before.header("Tuff-Repeated") is None
    assert repeated.header("Tuff-Repeated") == "true"
    for name in ("Tuff-First-Id", "Tuff-Last-Id"):
        assert repeated.header(name) == before.header(name)
    assert repeated.header("Tuff-Last-Id") == ids(topic.poll())[-1]


def test_numbers_that_rise_publish_each_time(topic: Topic) -> None:
    for number in range(1, 6):
        ok(topic.publish(str(number), ttl=60, **numbered(number)))

    assert topic.read() == ["1", "2", "3", "4", "5"]


def test_what_the_server_can_not_know_is_refused(topic: Topic) -> None:
    ok(topic.publish("b", **numbered(2)))

    refused(topic.publish("a", **numbered(1)), 409, "request_forgotten")
    refused(topic.publish("c", **numbered(3), age=901_000), 409, "request_forgotten")
    refused(topic.publish("other", **numbered(2)), 409, "request_id_reused")
    refused(topic.publish("x", requestId="1"), 400, "bad_request")
    refused(topic.publish("x", age=5), 400, "bad_request")
    refused(topic.publish("x", ack="none", **numbered(4)), 400, "bad_request")
    assert topic.read() == ["b"]


def test_a_killed_server_remembers_what_it_published(tmp_path: Path) -> None:
    with serve(tmp_path) as server, closing(Client(server.port)) as client:
        topic = created(client, "default", "kept")
        before = ok(topic.publish("a", **numbered(1)))
        with SessionClient(server.port) as session:
            names = topic.namespace, topic.name
            ok_query = {"requestId": f"{PRODUCER}.2.1"}
            assert session.call(PUBLISH, *names, query=ok_query, body={"messages": ["b"]})[0] == 200
        server.kill()
    with serve(tmp_path) as server, closing(Client(server.port)) as client:
        topic = Topic(client, "default", "kept")
        repeated = ok(topic.publish("a", **numbered(1), age=9000))
        assert ok(topic.publish("b", **numbered(2), age=9000)).header("Tuff-Repeated") == "true"
        assert repeated.header("Tuff-First-Id") == before.header("Tuff-First-Id")
        assert topic.read() == ["a", "b"]


def test_neighbouring_calls_of_a_session_keep_their_ids(
    server: ServerProcess, topic: Topic
) -> None:
    names = topic.namespace, topic.name
    with SessionClient(server.port) as session:
        frames = [
            session.frame(
                PUBLISH,
                *names,
                query={"requestId": f"{PRODUCER}.{number}.1"},
                body={"messages": [str(number)]},
            )
            for number in range(1, 41)
        ]
        session.write(*frames)
        before = [session.reply_to(each[1]) for each in frames]
        assert {each[0] for each in before} == {200}
        for number in (1, 17, 40):
            query = {"requestId": f"{PRODUCER}.{number}.1", "age": 10}
            again = session.call(PUBLISH, *names, query=query, body={"messages": [str(number)]})
            assert again[1]["Tuff-Repeated"] == "true"
            assert again[1]["Tuff-First-Id"] == before[number - 1][1]["Tuff-First-Id"]

    assert topic.read() == [str(number) for number in range(1, 41)]
