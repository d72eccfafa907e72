"""Sessions (docs/session.md): calls in any order, limits, bad frames, and their end."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.calls import Topic
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import Launch, NewServer, NewTopic, one_sentence
from tests.http.over_session import ClientOverSession
from tests.http.process import ServerProcess
from tests.http.session_client import (
    CANCEL,
    COMMIT,
    END,
    OUTCOME,
    PING,
    POLL,
    POLLS_MAX,
    PONG,
    PUBLISH,
    REPLY,
    RUN,
    START,
    ClosedError,
    SessionClient,
    packed,
)
from tests.protocol.avro_messages import messages_in
from tests.secret_values import hash_of_token, token_of
from tuff.protocol import avro
from tuff.protocol.requests import PublishRequest


@pytest.fixture
def session(server: ServerProcess) -> Iterator[SessionClient]:
    with SessionClient(server.port) as opened:
        yield opened


def payloads(reply: list[object]) -> list[bytes]:
    """What a poll has brought."""
    status, _, body = reply
    assert status == 200
    assert isinstance(body, bytes)
    return [payload for _, payload in messages_in(body)]


def end_of(session: SessionClient) -> object:
    """The problem with which the server ends a session; then it closes the connection."""
    while (frame := session.read())[0] != END:
        assert frame[0] == REPLY
    with pytest.raises(ClosedError):
        session.read()
    return frame[1]


def test_a_transaction_runs_over_a_session(session: SessionClient, topic: Topic) -> None:
    status, _, started = session.call(START, body={"type": "short"})
    assert status == 201
    entry = {"namespace": topic.namespace, "topic": topic.name, "messages": [b"\xff", "text"]}

    committed = session.call(
        COMMIT, started["transactionId"], body={"changes": [b"\xfe"], "publish": [entry]}
    )

    assert committed[0] == 200
    assert committed[2]["state"] == "committed"
    assert session.call(OUTCOME, started["transactionId"])[2]["state"] == "committed"
    read = session.call(
        POLL, topic.namespace, topic.name, query={"isolation": "committed"}, body={}
    )
    assert payloads(read) == [b"\xff", b"text"]


def test_the_stories_that_run_over_both_do_use_a_session(server: ServerProcess) -> None:
    over_session = ClientOverSession(server.port)

    ok(over_session.post("/v1/transactions", {"lists": False}))

    assert over_session.carried == 1
    over_session.close()


def test_a_reply_does_not_wait_for_an_earlier_call(session: SessionClient, topic: Topic) -> None:
    waiting = session.frame(POLL, topic.namespace, topic.name, query={"wait": 60}, body={})
    publish = session.frame(PUBLISH, topic.namespace, topic.name, body={"messages": ["m"]})

    session.write(waiting)
    session.write([PING])
    assert session.read() == [PONG]
    session.write(publish)

    assert session.reply_to(publish[1])[0] == 200
    assert payloads(session.reply_to(waiting[1])) == [b"m"]


def test_publishes_of_one_session_keep_their_order(session: SessionClient, topic: Topic) -> None:
    names = topic.namespace, topic.name
    sent = [session.frame(PUBLISH, *names, body={"messages": [str(n)]}) for n in range(300)]

    session.write(*sent)

    assert {session.reply_to(frame[1])[0] for frame in sent} == {200}
    read = session.call(POLL, *names, body={"limit": 1000})
    assert payloads(read) == [str(number).encode() for number in range(300)]


def test_publishes_that_arrive_together_get_the_ids_of_their_own_messages(
    session: SessionClient, topic: Topic
) -> None:
    names = topic.namespace, topic.name
    sent = [[b"a"], [b"b", b"c"], [b"d"]]
    frames = [session.frame(PUBLISH, *names, body={"messages": each}) for each in sent]

    session.write(*frames)

    for frame, messages in zip(frames, sent, strict=True):
        status, fields, _ = session.reply_to(frame[1])
        start = {"startFrom": fields["Tuff-First-Id"], "limit": len(messages)}
        _, _, body = session.call(POLL, *names, body=start)
        found = list(messages_in(body))
        assert status == 200
        assert [payload for _, payload in found] == messages
        assert found[-1][0].hex() == fields["Tuff-Last-Id"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": [7]}, 400),
        ({"messages": []}, 400),
        ({"messages": ["m"], "other": 1}, 400),
        ({"messages": [{"payload": "m", "ttl": 0}]}, 400),
        ({"messages": [{"payload": "m", "tags": ["t"]}]}, 200),
        ({"messages": ["m"], "transactionWritePointer": 7}, 404),
        (avro.encode_publish_request(PublishRequest(None, [b"m"])), 200),
    ],
    ids=str,
)
def test_a_publish_is_judged_by_itself_between_others(
    session: SessionClient, topic: Topic, body: object, status: int
) -> None:
    names = topic.namespace, topic.name
    bodies = [{"messages": ["1"]}, body, {"messages": [b"2"]}]
    sent = [session.frame(PUBLISH, *names, body=each) for each in bodies]

    session.write(*sent)

    assert [session.reply_to(frame[1])[0] for frame in sent] == [200, status, 200]
    assert topic.read() == (["1", "2"] if status != 200 else ["1", "m", "2"])


def test_publishes_that_arrive_together_keep_their_order_over_topics_and_other_calls(
    session: SessionClient, topic: Topic, new_topic: NewTopic
) -> None:
    other_topic, sent = new_topic(), []
    for number in range(60):
        to = other_topic if number % 5 == 4 else topic
        body = {"messages": [str(number)]}
        sent.append(session.frame(PUBLISH, to.namespace, to.name, body=body))
        if number % 7 == 6:
            sent.append(session.frame(START, body={"lists": False}))

    session.write(*sent)

    replies = [session.reply_to(frame[1]) for frame in sent]
    assert {reply[0] for reply in replies} == {200, 201}
    ids = [fields["Tuff-First-Id"] for status, fields, _ in replies if status == 200]
    assert ids == sorted(ids)
    assert topic.read() == [str(number) for number in range(60) if number % 5 != 4]
    assert other_topic.read() == [str(number) for number in range(60) if number % 5 == 4]


@pytest.mark.parametrize("is_avro", [True, False])
def test_publishes_behind_a_large_one_keep_their_order(
    session: SessionClient, topic: Topic, is_avro: bool
) -> None:
    """A large one is decoded in a thread, and those behind it were written meanwhile."""
    names, large = (topic.namespace, topic.name), ["large" * 20] * 2_000
    bodies = [["1"], large, ["2"], large, ["3"]]
    sent = [
        session.frame(PUBLISH, *names, body=in_avro(each) if is_avro else {"messages": each})
        for each in bodies
    ]

    session.write(*sent)

    ids = [session.reply_to(frame[1])[1]["Tuff-First-Id"] for frame in sent]
    assert ids == sorted(ids)


def test_a_large_publish_that_is_refused_holds_up_none_behind_it(
    session: SessionClient, topic: Topic
) -> None:
    names = topic.namespace, topic.name
    broken = session.frame(PUBLISH, *names, body=in_avro(["large" * 20] * 2_000)[:-1])
    whole = session.frame(PUBLISH, *names, body=in_avro(["m"]))

    session.write(broken, whole)

    assert session.reply_to(broken[1])[0] == 400
    assert session.reply_to(whole[1])[0] == 200
    assert topic.read() == ["m"]


def test_commits_and_runs_behind_a_large_one_keep_their_order(
    session: SessionClient, topic: Topic
) -> None:
    """A large one is decoded in a thread; those behind it are decided after it."""

    def entries(*messages: str) -> dict[str, object]:
        entry = {"namespace": topic.namespace, "topic": topic.name, "messages": messages}
        return {"publish": [entry]}

    tx = [session.call(START, body={"type": "short"})[2]["transactionId"] for _ in range(4)]
    large = ["large" * 20] * 2_100
    broken = session.frame(COMMIT, tx[0], body={"changes": [], **entries(*large, None)})
    sent = [
        session.frame(COMMIT, tx[1], body={"changes": [], **entries("1")}),
        session.frame(COMMIT, tx[2], body={"changes": [], **entries(*large)}),
        session.frame(RUN, body=entries("2")),
        session.frame(COMMIT, tx[3], body={"changes": [], **entries("3")}),
        session.frame(RUN, body=entries(*large)),
    ]

    session.write(broken, *sent)

    assert session.reply_to(broken[1])[0] == 400
    assert [session.reply_to(frame[1])[0] for frame in sent] == [200] * 5
    assert topic.read() == ["1", *large, "2", "3", *large]


def in_avro(messages: list[str]) -> bytes:
    payloads = [message.encode() for message in messages]
    return avro.encode_publish_request(PublishRequest(None, payloads))


def test_publishes_of_one_id_that_arrive_together_are_written_once(
    session: SessionClient, topic: Topic
) -> None:
    names = topic.namespace, topic.name
    query = {"requestId": "8f3a61c2d5e7b904.1"}
    sent = [session.frame(PUBLISH, *names, body={"messages": ["m"]}, query=query) for _ in range(3)]

    session.write(*sent)

    fields = [session.reply_to(frame[1])[1] for frame in sent]
    assert len({each["Tuff-First-Id"] for each in fields}) == 1
    assert ["Tuff-Repeated" in each for each in fields] == [False, True, True]
    assert topic.read() == ["m"]


def test_publishes_that_arrive_together_go_to_partitions_one_by_one(
    session: SessionClient, new_topic: NewTopic
) -> None:
    topic = new_topic({"partitions": 3})
    names = topic.namespace, topic.name
    sent = [session.frame(PUBLISH, *names, body={"messages": ["m"]}) for _ in range(3)]

    session.write(*sent)

    partitions = [session.reply_to(frame[1])[1]["Tuff-Partitions"] for frame in sent]
    assert sorted(partitions) == ["0", "1", "2"]


def test_publishes_that_arrive_together_are_refused_together(session: SessionClient) -> None:
    sent = [session.frame(PUBLISH, "default", "none", body={"messages": ["m"]}) for _ in range(3)]

    session.write(*sent)

    replies = [session.reply_to(frame[1]) for frame in sent]
    assert [(each[0], each[2]["code"]) for each in replies] == [(404, "topic_not_found")] * 3


def test_a_refusal_is_the_problem_document_of_http(session: SessionClient, client: Client) -> None:
    over_http = refused(client.get("/v1/transactions/7"), 404, "transaction_unknown")

    assert session.call(OUTCOME, 7) == [404, {}, over_http]
    assert session.call(RUN, body={"publish": [], "other": 1})[2]["code"] == "bad_request"


@pytest.mark.parametrize(
    "rest",
    [
        {"body": 7},
        {"body": ["a"]},
        {"query": {"wait": [1]}, "body": {}},
        {"query": "wait=1"},
        {"query": {"other": 1}},
        {"body": b"\xff"},
        {"body": b"", "content_type": 7},
        {"body": b"x", "content_type": "text/plain"},
        {"body": {}, "accept": 7},
        {"body": {}, "accept": "text/plain"},
    ],
    ids=str,
)
def test_a_bad_call_is_refused_and_the_session_goes_on(
    session: SessionClient, topic: Topic, rest: dict[str, object]
) -> None:
    status, _, problem = session.call(POLL, topic.namespace, topic.name, **rest)

    assert status in {400, 406, 415}
    assert problem["status"] == status
    assert problem["detail"]
    assert session.call(POLL, topic.namespace, topic.name, body={})[0] == 200


@pytest.mark.parametrize("parameters", [(), ("a",), ("a", "b", "c"), ("a", None), ("a", [])])
def test_a_call_has_the_parameters_of_its_path(
    session: SessionClient, parameters: tuple[object, ...]
) -> None:
    assert session.call(PUBLISH, *parameters, body={})[0] == 400


def test_an_unknown_operation_is_refused(session: SessionClient) -> None:
    assert [session.call(number)[0] for number in (0, 99, -1)] == [404, 404, 404]


@pytest.mark.parametrize(
    "wrong",
    [b"\x00\x00\x00\x01\xc1", packed([9]), packed([7, 7]), b"\xff\xff\xff\xff", packed([1, "a"])],
)
def test_a_frame_that_cannot_be_read_ends_the_session(
    session: SessionClient, topic: Topic, wrong: bytes
) -> None:
    names = topic.namespace, topic.name
    before, after = (session.frame(PUBLISH, *names, body={"messages": ["m"]}) for _ in range(2))

    session.socket.sendall(packed(before) + wrong + packed(after))

    ended = session.read()
    assert ended[0] == END
    assert ended[1]["status"] in {400, 413}
    assert session.reply_to(before[1])[0] == 200
    with pytest.raises(ClosedError):
        session.reply_to(after[1])
    assert topic.read() == ["m"]


def test_an_id_that_is_under_way_ends_the_session(session: SessionClient, topic: Topic) -> None:
    waiting = session.frame(POLL, topic.namespace, topic.name, query={"wait": 60}, body={})

    session.write(waiting, waiting)

    problem = end_of(session)
    assert isinstance(problem, dict)
    assert "under way" in problem["detail"]


def test_polls_above_the_limit_are_refused(session: SessionClient, topic: Topic) -> None:
    names = topic.namespace, topic.name
    polls = [session.frame(POLL, *names, query={"wait": 60}, body={}) for _ in range(POLLS_MAX + 1)]

    session.write(*polls)

    assert session.reply_to(polls[-1][1])[0] == 429
    session.write([CANCEL, polls[0][1]])
    one_more = session.frame(POLL, *names, query={"wait": 60}, body={})
    session.write(one_more)
    ok(topic.publish("m"))
    assert payloads(session.reply_to(one_more[1])) == [b"m"]
    assert payloads(session.reply_to(polls[1][1])) == [b"m"]


def test_a_cancel_of_anything_but_a_poll_changes_nothing(
    session: SessionClient, topic: Topic
) -> None:
    publish = session.frame(PUBLISH, topic.namespace, topic.name, body={"messages": ["m"]})

    session.write(publish, [CANCEL, publish[1]], [CANCEL, 1 << 40])

    assert session.reply_to(publish[1])[0] == 200


def test_a_client_that_stops_sending_gets_all_replies(session: SessionClient, topic: Topic) -> None:
    names = topic.namespace, topic.name
    waiting = session.frame(POLL, *names, query={"wait": 60, "tags": "none"}, body={})
    publish = session.frame(PUBLISH, *names, body={"messages": ["m"]})
    session.write(waiting, publish)

    session.socket.shutdown(socket.SHUT_WR)

    assert session.reply_to(publish[1])[0] == 200
    with pytest.raises(ClosedError):
        session.reply_to(waiting[1])


@pytest.mark.parametrize("version", ["tuff-session/2", "websocket", ""])
def test_another_version_is_refused(client: Client, version: str) -> None:
    reply = client.send("GET", "/v1/session", headers={"Connection": "Upgrade", "Upgrade": version})

    refused(reply, 426, "upgrade_required", naming="tuff-session/1")


def test_a_request_without_an_upgrade_is_told_what_to_send(client: Client) -> None:
    said = refused(client.get("/v1/session"), 426, "upgrade_required", naming="tuff-session/1")

    assert "null" not in str(said["detail"])


def test_a_poll_is_answered_in_the_type_that_the_call_names(
    session: SessionClient, topic: Topic
) -> None:
    names = (topic.namespace, topic.name)
    session.call(PUBLISH, *names, body={"messages": ["m", b"\xff"]})

    as_json = session.call(POLL, *names, body={}, accept="application/json")[2]

    assert [each["payload"] for each in as_json] == ["m", {"base64": "/w=="}]


def test_a_client_that_does_not_wait_for_the_upgrade_is_refused(server: ServerProcess) -> None:
    head = "GET /v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    request = f"{head}Upgrade: tuff-session/1\r\n\r\n".encode() + packed([PING])

    with socket.create_connection(("127.0.0.1", server.port), 10.0) as raw:
        raw.sendall(request)
        answer = raw.recv(100)

    assert answer.startswith(b"HTTP/1.1 400 ")


def test_a_stop_answers_what_is_under_way(new_server: NewServer) -> None:
    server = new_server()
    topic = Topic(server.client(), "default", "t")
    ok(topic.create())
    with SessionClient(server.port) as session:
        waiting = session.frame(POLL, "default", "t", query={"wait": 30}, body={})
        session.write(waiting)
        session.write([PING])
        assert session.read() == [PONG]

        assert server.terminate() == 0

        assert session.read() == [END, None]
        assert payloads(session.reply_to(waiting[1])) == []
        with pytest.raises(ClosedError):
            session.read()


def test_a_unix_socket_takes_sessions_and_is_private(new_server: NewServer, tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = new_server(f"server.unix_socket={path}")

    with SessionClient(0, path=str(path)) as session:
        assert session.call(START, body={})[0] == 201

    assert path.stat().st_mode & 0o777 == 0o600
    server.terminate()
    assert not path.exists()


def test_the_socket_of_a_killed_server_is_replaced_and_of_a_live_one_is_not(
    new_server: NewServer, launch: Launch, tmp_path: Path
) -> None:
    path, option = tmp_path / "s", f"server.unix_socket={tmp_path / 's'}"
    new_server(option).kill()
    assert path.exists()
    new_server(option)

    second = launch("--port", "0", "--data", str(tmp_path / "other"), "--set", option)

    assert second.wait_exit() == 1
    assert "another server listens there" in one_sentence(second)


def test_a_file_that_is_no_socket_stays(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")

    refused_start = launch("--port", "0", "--set", f"server.unix_socket={path}")

    assert refused_start.wait_exit() == 1
    assert path.read_text() == "mine"


RIGHTS = """
[principals.one]
tokens = ["{digest}"]
[[principals.one.rights]]
topics = ["allowed"]
allow = ["publish", "transact"]
"""


def test_each_call_needs_its_right_and_a_revoked_token_ends_the_session(
    new_server: NewServer, tmp_path: Path
) -> None:
    file = tmp_path / "access.toml"
    file.write_text(RIGHTS.format(digest=hash_of_token("one")))
    server = new_server(f"server.access_file={file}")
    refused(server.client().get("/v1/session"), 401, "unauthenticated")
    bearer = {"Authorization": f"Bearer {token_of('one')}"}
    with SessionClient(server.port, headers=bearer) as session:
        entry = {"namespace": "default", "topic": "other", "messages": ["m"]}
        assert session.call(PUBLISH, "default", "allowed", body={"messages": ["m"]})[0] == 404
        assert session.call(PUBLISH, "default", "other", body={"messages": ["m"]})[0] == 403
        assert session.call(RUN, body={"publish": [entry]})[0] == 403
        assert session.call(START, body={})[0] == 201

        file.write_text(RIGHTS.format(digest=hash_of_token("another")))

        problem = end_of(session)
        assert isinstance(problem, dict)
        assert problem["code"] == "unauthenticated"


def test_a_quota_counts_each_publish_of_those_that_arrive_together(
    new_server: NewServer, tmp_path: Path
) -> None:
    file = tmp_path / "access.toml"
    digest = hash_of_token("one")
    rights = RIGHTS.format(digest=digest).replace('"publish"', '"create", "publish"')
    file.write_text(rights.replace("[[", "requests_per_second = 10\n[[", 1))
    server = new_server(f"server.access_file={file}")
    headers = {"Authorization": f"Bearer {token_of('one')}"}
    ok(server.client().send("PUT", "/v1/namespaces/default/topics/allowed", headers=headers))
    with SessionClient(server.port, headers=headers) as session:
        body = {"messages": ["m"]}
        sent = [session.frame(PUBLISH, "default", "allowed", body=body) for _ in range(40)]

        session.write(*sent)

        statuses = [session.reply_to(frame[1])[0] for frame in sent]
        assert set(statuses) == {200, 429}


def test_a_client_that_disappears_leaves_no_waiting_poll(
    server: ServerProcess, client: Client, topic: Topic
) -> None:
    def is_idle() -> bool:
        return b"tuff_polls_waiting 0.0" in client.get("/metrics").body

    with SessionClient(server.port) as session:
        session.write(session.frame(POLL, topic.namespace, topic.name, query={"wait": 60}, body={}))
        until(lambda: not is_idle())

    until(is_idle)


def test_a_name_or_a_type_of_any_length_is_refused(session: SessionClient, topic: Topic) -> None:
    long = "x" * 8_191
    body = {"messages": ["m"]}
    names = (topic.namespace, topic.name)

    for reply in (
        session.call(PUBLISH, topic.namespace, long, body=body),
        session.call(PUBLISH, *names, body=b"", content_type=long),
        session.call(POLL, *names, body={}, accept=long),
    ):
        assert reply[0] == 400
        assert "at most 8190 characters" in str(reply[2])


def test_calls_wait_until_their_client_reads_the_replies(
    session: SessionClient, topic: Topic
) -> None:
    names = (topic.namespace, topic.name)
    session.call(PUBLISH, *names, body={"messages": [b"x" * 2_000_000]})
    polls = [session.frame(POLL, *names, body={}) for _ in range(150)]

    session.socket.sendall(b"".join(map(packed, polls)))

    assert {session.reply_to(each[1])[0] for each in polls} == {200}
